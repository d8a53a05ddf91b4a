package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// hidden is a mount namespace without net.* in /proc/sys. gVisor takes a network
// namespace with net.core.rmem_default for the host's and refuses it; since Linux
// 6.9 every namespace has it. Newer releases of gVisor use another test.
type hidden struct{ mounts *os.File }

// hideSysctls makes the mount namespace; dir is an empty folder.
func hideSysctls(dir string) (*hidden, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	h := &hidden{}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		done <- h.make(dir)
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("hide net.* from gVisor: %w", err)
	}
	return h, nil
}

func (h *hidden) make(dir string) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	// Mounts of new namespaces propagate into this one, none propagate out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, kept := range []string{"vm", "kernel", "fs"} {
		to := filepath.Join(dir, kept)
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(filepath.Join("/proc/sys", kept), to, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := unix.Mount(dir, "/proc/sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	h.mounts, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}

// do calls fn on a thread in the mount namespace, which processes that it starts
// inherit. If h is nil, do calls fn directly.
func (h *hidden) do(fn func() error) error {
	if h == nil {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			done <- fmt.Errorf("enter gVisor's mounts: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

func (h *hidden) close() error {
	if h == nil {
		return nil
	}
	return h.mounts.Close()
}
