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

// tcxHooker attaches tcx links (Linux 6.6). A pinned link keeps its program
// attached when the daemon dies; removing the pin detaches it.
type tcxHooker struct {
	program chooser
	pinDir  string
}

func (t *tcxHooker) mode() string { return "tcx" }
func (t *tcxHooker) close() error { return nil }

func (t *tcxHooker) attach(h Hook, ifindex int) error {
	path := linkPath(t.pinDir, h, ifindex)
	if done, err := t.update(path, h, ifindex); done || err != nil {
		return err
	}

	l, err := t.link(h, ifindex)
	if err != nil {
		return err
	}
	defer l.Close()
	// The directory may have been removed together with the hook.
	if err := os.MkdirAll(t.pinDir, 0o700); err != nil {
		return err
	}
	return l.Pin(path)
}

// link attaches the program of a hook.
func (t *tcxHooker) link(h Hook, ifindex int) (link.Link, error) {
	program, err := t.program(h, ifindex)
	if err != nil {
		return nil, err
	}
	if h == FromNetkit {
		return link.AttachNetkit(link.NetkitOptions{
			Interface: ifindex, Program: program, Attach: ebpf.AttachNetkitPeer, Anchor: link.Tail(),
		})
	}
	opts := link.TCXOptions{Interface: ifindex, Program: program}
	if h.egress() {
		opts.Attach, opts.Anchor = ebpf.AttachTCXEgress, link.Head()
	} else {
		opts.Attach, opts.Anchor = ebpf.AttachTCXIngress, link.Tail()
	}
	return link.AttachTCX(opts)
}

// update replaces the program of a pinned link that still has its device, and
// reports whether there was such a link.
func (t *tcxHooker) update(path string, h Hook, ifindex int) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		defer l.Close()
		if device(l) == ifindex {
			program, err := t.program(h, ifindex)
			if err != nil {
				return true, err
			}
			return true, l.Update(program)
		}
	}
	// The device is gone, or the pin is no link. The name is SCON's: remove
	// it.
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("removing the stale pin %s: %w", path, err)
	}
	return false, nil
}

// device returns the ifindex of a tcx or netkit link, 0 if its device is gone
// or it is another kind of link.
func device(l link.Link) int {
	info, err := l.Info()
	switch {
	case err != nil:
		return 0
	case info.Netkit() != nil:
		return int(info.Netkit().Ifindex)
	case info.TCX() != nil:
		return int(info.TCX().Ifindex)
	default:
		return 0
	}
}

// Abandoned reports whether pinDir belongs to a datapath whose devices are all
// gone. A datapath that never had hooks is not abandoned: its namespace may be
// alive.
func Abandoned(pinDir string) bool {
	hooks, err := (&tcxHooker{pinDir: pinDir}).attached()
	if err != nil || len(hooks) == 0 {
		return false
	}
	for _, a := range hooks {
		l, err := link.LoadPinnedLink(linkPath(pinDir, a.Hook, a.Ifindex), nil)
		if err != nil {
			return false
		}
		alive := device(l) != 0
		l.Close()
		if alive {
			return false
		}
	}
	return true
}

// detach does not rely on removing the pin: the kernel would detach later.
func (t *tcxHooker) detach(h Hook, ifindex int) error {
	path := linkPath(t.pinDir, h, ifindex)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer l.Close()
		if err := l.Detach(); err != nil {
			return err
		}
	}
	return os.Remove(path)
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
