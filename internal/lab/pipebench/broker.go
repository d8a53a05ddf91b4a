package pipebench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
)

// brokerArgs are the arguments, before the socket's path, with which this
// executable calls ServeBroker.
var brokerArgs = []string{"pipe", "broker"}

// memoryLimit of the broker. It is enough for the smallest rings of all
// connections, and for larger rings of some.
const memoryLimit = 2 << 30

// ServeBroker runs a broker for the bench alone, in a process of its own, so that
// its processor time can be measured. It writes a line when it is ready, takes each byte
// of in for a change of rules, and exits when in ends.
func ServeBroker(socket string, in io.Reader, out, log io.Writer) error {
	b, err := pipe.New(pipe.Options{
		Socket: socket, MemoryLimit: memoryLimit, Share: 100, Copier: copier.New(""),
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
		if _, err = in.Read(one); err == nil {
			b.Recheck()
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
	cmd    *exec.Cmd
	in     io.WriteCloser
	says   bytes.Buffer
}

// stopPatience is the time that the broker may take to exit.
const stopPatience = 30 * time.Second

func startBroker(ctx context.Context, socket string) (b *broker, err error) {
	b = &broker{socket: socket, cmd: exec.Command("/proc/self/exe", append(brokerArgs, socket)...)}
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
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("start the pipe's broker: it wrote %q", line), b.stop())
	}
	return b, nil
}

// changeRules tells the broker that rules have changed.
func (b *broker) changeRules() error {
	_, err := b.in.Write([]byte{0})
	return err
}

// kill kills the broker, like a crash.
func (b *broker) kill() { _ = b.cmd.Process.Kill() }

// startAgain starts another broker in place of a killed one.
func (b *bed) startAgain(ctx context.Context) (err error) {
	b.broker.in.Close()
	_ = b.broker.cmd.Wait()
	fresh, err := startBroker(ctx, b.broker.socket)
	if err == nil {
		b.broker = fresh
	}
	return err
}

func (b *broker) pid() int { return b.cmd.Process.Pid }

func (b *broker) stop() error {
	b.in.Close()
	defer time.AfterFunc(stopPatience, func() { b.cmd.Process.Kill() }).Stop()
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("stop the pipe's broker: %w: %s", err, bytes.TrimSpace(b.says.Bytes()))
	}
	return nil
}
