package pipebench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/lab/bench"
)

// brokerArgs are the arguments, before those of ServeBroker, with which this
// executable calls it.
var brokerArgs = []string{"pipe", "broker"}

// memoryLimit of the broker. It is enough for the smallest rings of all
// connections, and for larger rings of some.
const memoryLimit = 2 << 30

// Bytes that ask a broker's process for something.
const (
	rulesChanged byte = iota
	whichDevice       // to write the name of the copy device, and a newline
)

// ServeBroker runs a broker for the bench alone, in a process of its own, so that
// its processor time can be measured. The arguments are the socket and the helper's
// path, "" to copy with processors. It writes a line when it is ready, does what each byte of in
// asks for, and exits when in ends.
func ServeBroker(args []string, in io.Reader, out, log io.Writer) error {
	b, err := pipe.New(pipe.Options{
		Socket: args[0], MemoryLimit: memoryLimit, Share: 100, Copier: copier.New(args[1]),
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return errors.Join(err, b.Close())
	}
	one := make([]byte, 1)
	for err == nil {
		if _, err = in.Read(one); err != nil {
			break
		}
		switch one[0] {
		case rulesChanged:
			b.Recheck()
		case whichDevice:
			_, err = fmt.Fprintln(out, b.Status().CopyDevice)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, b.Close())
}

// broker is the broker's process.
type broker struct {
	socket string
	helper string // copies with a device; "": the processors copy
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	says   bytes.Buffer
}

const (
	// stopPatience is the time that the broker may take to exit.
	stopPatience = 30 * time.Second
	// devicePatience is the time that a helper may take to start.
	devicePatience = 30 * time.Second
)

func startBroker(ctx context.Context, socket, helper string) (b *broker, err error) {
	args := append(slices.Clone(brokerArgs), socket, helper)
	b = &broker{socket: socket, helper: helper, cmd: exec.Command("/proc/self/exe", args...)}
	b.cmd.Stderr = &b.says
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach it
	in, err := b.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	b.in = in
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the pipe's broker: %w", err)
	}
	defer context.AfterFunc(ctx, func() { b.cmd.Process.Kill() })()
	b.out = bufio.NewReader(out)
	if line, err := b.out.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("start the pipe's broker: it wrote %q", line), b.stop())
	}
	return b, nil
}

// changeRules tells the broker that rules have changed.
func (b *broker) changeRules() error {
	_, err := b.in.Write([]byte{rulesChanged})
	return err
}

// device returns the name of the device that copies, "" for none.
func (b *broker) device() (string, error) {
	if _, err := b.in.Write([]byte{whichDevice}); err != nil {
		return "", err
	}
	line, err := b.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// kill kills the broker, like a crash.
func (b *broker) kill() { _ = b.cmd.Process.Kill() }

// startAgain starts another broker in place of a killed one.
func (b *bed) startAgain(ctx context.Context) (err error) {
	b.broker.in.Close()
	_ = b.broker.cmd.Wait()
	fresh, err := startBroker(ctx, b.broker.socket, b.broker.helper)
	if err == nil {
		b.broker = fresh
	}
	return err
}

// processes returns the PIDs of the broker and of its helpers.
func (b *broker) processes() (pids []int, err error) {
	pids = []int{b.cmd.Process.Pid}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		var state string
		_, pidErr := fmt.Sscan(string(stat), &pid)
		name := bytes.LastIndexByte(stat, ')') // a name may have any byte
		_, parentErr := fmt.Sscan(string(stat[name+1:]), &state, &parent)
		if err := errors.Join(pidErr, parentErr); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if parent == pids[0] {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// processTime returns the processor time of the broker and its helpers.
func (b *broker) processTime() (sum time.Duration, err error) {
	pids, err := b.processes()
	for _, pid := range pids {
		t, timeErr := bench.ProcessTime(pid)
		sum, err = sum+t, errors.Join(err, timeErr)
	}
	return sum, err
}

func (b *broker) stop() error {
	b.in.Close()
	defer time.AfterFunc(stopPatience, func() { b.cmd.Process.Kill() }).Stop()
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("stop the pipe's broker: %w: %s", err, bytes.TrimSpace(b.says.Bytes()))
	}
	return nil
}
