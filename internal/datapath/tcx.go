package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// tcxHooker attaches by tcx links (Linux 6.6). A pinned link keeps its program
// attached when the daemon dies, and removing the pin detaches it.
type tcxHooker struct {
	programs *expressPrograms
	pinDir   string
}

func (t *tcxHooker) mode() string { return "tcx" }
func (t *tcxHooker) close() error { return nil }

func (t *tcxHooker) attach(h Hook, ifindex int) error {
	path := linkPath(t.pinDir, h, ifindex)
	if done, err := t.update(path, h, ifindex); done || err != nil {
		return err
	}

	opts := link.TCXOptions{Interface: ifindex, Program: h.program(t.programs)}
	if h.egress() {
		opts.Attach, opts.Anchor = ebpf.AttachTCXEgress, link.Head()
	} else {
		opts.Attach, opts.Anchor = ebpf.AttachTCXIngress, link.Tail()
	}
	l, err := link.AttachTCX(opts)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(path)
}

// update puts the current program into a pinned link that still holds its
// device, and reports whether there was one.
func (t *tcxHooker) update(path string, h Hook, ifindex int) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		defer l.Close()
		if info, err := l.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == ifindex {
			return true, l.Update(h.program(t.programs))
		}
	}
	// Its device is gone, or it is no link: the name is ours, make room.
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("removing the stale pin %s: %w", path, err)
	}
	return false, nil
}

func (t *tcxHooker) detach(h Hook, ifindex int) error {
	err := os.Remove(linkPath(t.pinDir, h, ifindex))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (t *tcxHooker) attached() ([]Attached, error) {
	paths, err := filepath.Glob(filepath.Join(t.pinDir, "*_*"))
	if err != nil {
		return nil, err
	}
	var all []Attached
	for _, path := range paths {
		if a, ok := parsePin(path); ok {
			all = append(all, a)
		}
	}
	return all, nil
}
