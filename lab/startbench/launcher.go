package startbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/figures"
)

// closePatience is the timeout of the launcher's removal of all containers.
const closePatience = 2 * time.Minute

// launcher is a running helper "startup".
type launcher struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	orders *json.Encoder
	answer *json.Decoder
	output bytes.Buffer
	ended  chan error
}

// startLauncher starts the launcher in the bed and waits until the network's peer is
// up.
func (b *bed) startLauncher(ctx context.Context, o Order) (*launcher, error) {
	l := &launcher{cmd: exec.Command("/proc/self/exe", append(slices.Clone(figures.HelperArgs), "startup")...), ended: make(chan error, 1)}
	// A process group of its own: the bench handles Ctrl-C and ends the launcher in
	// order. If the bench is killed, the launcher still removes its containers.
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	l.cmd.Stderr = &l.output
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.orders, l.answer = json.NewEncoder(l.in), json.NewDecoder(out)
	if err := netns.Do(b.host.name, l.cmd.Start); err != nil {
		return nil, fmt.Errorf("start the launcher: %w", err)
	}
	// The launcher is still waiting for its order.
	if err := b.group.add(l.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, l.close())
	}
	if _, err := l.call(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the launcher: %w", err), l.close())
	}
	return l, nil
}

// do makes the launcher carry out a command.
func (l *launcher) do(ctx context.Context, c Command) (Report, error) {
	r, err := l.call(ctx, c)
	if err != nil {
		return r, fmt.Errorf("%s %d containers: %w", c.Do, c.Count, err)
	}
	return r, nil
}

// call sends an order or a command and waits for the answer.
func (l *launcher) call(ctx context.Context, what any) (Report, error) {
	if err := l.orders.Encode(what); err != nil {
		return Report{}, fmt.Errorf("%w: %s", err, bytes.TrimSpace(l.output.Bytes()))
	}
	// EOF of its input aborts the running command.
	defer context.AfterFunc(ctx, func() { l.in.Close() })()
	var r Report
	if err := l.answer.Decode(&r); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Report{}, fmt.Errorf("%w: %s", err, bytes.TrimSpace(l.output.Bytes()))
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// close ends the launcher, which removes its containers.
func (l *launcher) close() error {
	l.in.Close()
	go func() {
		io.Copy(io.Discard, io.MultiReader(l.answer.Buffered()))
		l.ended <- l.cmd.Wait()
	}()
	var err error
	select {
	case err = <-l.ended:
	case <-time.After(closePatience):
		l.cmd.Process.Kill()
		err = errors.Join(fmt.Errorf("it did not exit within %v and was killed", closePatience), <-l.ended)
	}
	if err != nil {
		return fmt.Errorf("end the launcher: %w: %s", err, bytes.TrimSpace(l.output.Bytes()))
	}
	return nil
}
