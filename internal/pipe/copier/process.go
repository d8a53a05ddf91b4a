package copier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// helper is a process that copies with a device.
type helper struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	orders int // socket to the helper, for orders; open while the helper serves
	state  atomic.Int32
	device string // the device's name, once the helper is ready
}

// States of a helper.
const (
	helperStarts int32 = iota
	helperReady
	helperServes // it takes submissions: the worker's thread has to close orders
	helperGone
)

// name returns the device's name; "" while the helper has none.
func (h *helper) name() string {
	if s := h.state.Load(); s != helperReady && s != helperServes {
		return ""
	}
	return h.device
}

// begin reports whether the helper is ready, which serves from now on.
func (h *helper) begin() bool { return h.state.CompareAndSwap(helperReady, helperServes) }

// gone reports whether the process has ended.
func (h *helper) gone() bool { return h.state.Load() == helperGone }

// startHelper starts a helper for the queues' file.
func startHelper(program string, file int) (*helper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create a socket for the helper: %w", err)
	}
	h := &helper{cmd: exec.Command(program, "serve"), orders: pair[0]}
	theirs := os.NewFile(uintptr(pair[1]), "orders")
	defer theirs.Close()
	if file, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		unix.Close(h.orders)
		return nil, fmt.Errorf("duplicate the queues' file for the helper: %w", err)
	}
	queues := os.NewFile(uintptr(file), "queues")
	defer queues.Close()
	h.cmd.ExtraFiles = []*os.File{theirs, queues}
	h.cmd.Stderr = &h.stderr
	if err := h.cmd.Start(); err != nil {
		unix.Close(h.orders)
		return nil, err
	}
	return h, nil
}

// Pauses before another helper starts. They double, until one has run for helperProven.
const (
	firstHelperPause = time.Second
	mostHelperPause  = 10 * time.Minute
	helperProven     = time.Hour
)

// keepHelper runs helpers, one after another, until the device closes.
func (d *device) keepHelper() {
	pause := firstHelperPause
	for level := slog.LevelWarn; ; {
		begun := time.Now()
		err := d.runHelper()
		if d.isClosing() {
			return
		}
		if time.Since(begun) > helperProven {
			pause, level = firstHelperPause, slog.LevelWarn
		}
		d.log.Log(context.Background(), level, "pipe: no copy helper runs; copying with the CPU", "helper", d.program, "error", err, "retry", pause)
		select {
		case <-time.After(pause):
		case <-d.closing:
			return
		}
		pause, level = min(2*pause, mostHelperPause), slog.LevelDebug
	}
}

func (d *device) isClosing() bool {
	select {
	case <-d.closing:
		return true
	default:
		return false
	}
}

// runHelper runs a helper, and returns why it has ended.
func (d *device) runHelper() error {
	h, err := startHelper(d.program, d.q.file)
	if err != nil {
		return err
	}
	d.newest.Store(h)
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		d.stopHelper(h, ended)
	}()
	err = h.wait()
	close(ended)
	<-stopped // it uses the socket
	if h.state.Swap(helperGone) != helperServes {
		unix.Close(h.orders)
	}
	return err
}

// stopHelper stops a helper when the device closes: it exits when its socket closes, and is
// killed after helperTimeout.
func (d *device) stopHelper(h *helper, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-d.closing:
	}
	_ = unix.Shutdown(h.orders, unix.SHUT_RDWR)
	select {
	case <-ended:
	case <-time.After(helperTimeout):
		_ = h.cmd.Process.Kill()
	}
}

// wait receives the device's name when the helper is ready, and then waits for its exit.
func (h *helper) wait() error {
	var name [256]byte
	n, err := unix.Read(h.orders, name[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(h.orders, name[:])
	}
	if n > 0 {
		h.device = string(name[:n])
		h.state.Store(helperReady)
	}
	err = h.cmd.Wait()
	if said := bytes.TrimSpace(h.stderr.Bytes()); len(said) > 0 {
		err = errors.Join(err, errors.New(string(said)))
	}
	return err
}
