package vm

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// emulators are the programs of Debian's package qemu-user-static that run an
// architecture's programs, each with what its ELF headers begin with and the bits of these
// that matter, as binfmt_misc takes them.
var emulators = map[string]struct{ program, magic, mask string }{
	"arm64": {
		"/usr/bin/qemu-aarch64-static",
		`\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`,
		`\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`,
	},
}

// register has the kernel run programs as "$0" says, and runs a command. Since Linux 6.7 a
// user namespace has its own binfmt_misc, which ends with it: nothing of this machine
// changes. The files of $1 are in /usr/bin, too, where mmdebstrap looks for an emulator.
const register = `mount -t proc proc /proc && mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || {
	echo "programs of another architecture need a binfmt_misc of a user namespace: Linux 6.7, and a /proc that nothing covers" >&2
	exit 1
}
mount -t overlay -o "lowerdir=$1:/usr/bin" overlay /usr/bin && shift &&
printf %s "$0" >/proc/sys/fs/binfmt_misc/register && exec "$@"`

// foreign returns a command whose children may be programs of another architecture.
func foreign(ctx context.Context, arch string, command ...string) (*exec.Cmd, error) {
	if arch == runtime.GOARCH {
		return exec.CommandContext(ctx, command[0], command[1:]...), nil
	}
	e, ok := emulators[arch]
	if !ok {
		return nil, fmt.Errorf("no emulator of %s programs on %s is known", arch, runtime.GOARCH)
	}
	// Where qemu-user-static is installed, the machine itself runs other architectures' programs.
	dir, err := Unpacked(ctx, runtime.GOARCH, "emulators", "qemu-user-static")
	if err != nil {
		return nil, fmt.Errorf("fetch the emulator of %s programs: %w", arch, err)
	}
	// F: the emulator is opened now, since a system's own root does not have it.
	format := fmt.Sprintf(":scon-%s:M::%s:%s:%s:F", arch, e.magic, e.mask, e.program)
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", register, format, filepath.Join(dir, "usr/bin")}, command...)...)
	all := []syscall.SysProcIDMap{{Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true,
	}
	return cmd, nil
}
