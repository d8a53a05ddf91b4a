package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MountSysfs mounts the sysfs of a namespace, "" for this thread's, at no path, with
// attributes MOUNT_ATTR_...: it ends with the last file that is open in it. A sysfs shows the
// devices of the namespace that it was mounted in.
func MountSysfs(namespace string, attributes int) (*os.File, error) {
	var fd int
	err := Do(namespace, func() error {
		sb, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(sb)
		if err := unix.FsconfigCreate(sb); err != nil {
			return err
		}
		fd, err = unix.Fsmount(sb, unix.FSMOUNT_CLOEXEC, attributes)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mount a sysfs of namespace %q: %w", namespace, err)
	}
	return os.NewFile(uintptr(fd), "sysfs"), nil
}
