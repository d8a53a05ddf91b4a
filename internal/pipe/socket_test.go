package pipe_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// A container that has the socket's directory writable takes the name. The broker makes it
// again, whatever has it, and counts it; sessions continue.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(path string) error{
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
		"removed": os.Remove,
		"another socket": func(path string) error {
			if err := os.Rename(path, path+".old"); err != nil {
				return err
			}
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"a full directory": func(path string) error {
			if err := os.Rename(path, path+".old"); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(path, "more"), 0o700)
		},
		"mode of the socket":    func(path string) error { return os.Chmod(path, 0) },
		"mode of the directory": func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, socket := serve(t, nil)
			before := greeted(t, socket)
			if err := take(socket); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the broker's own name", func() bool { return b.Status().Refused["socket replaced"] == 1 })
			greeted(t, socket)
			if a := before.ask(message{op: opWake}); a.errno != unix.EBADF {
				t.Errorf("a session from before: %+v", a)
			}
			dir, err := os.Stat(filepath.Dir(socket))
			if err != nil || dir.Mode().Perm() != 0o755 {
				t.Errorf("%v: %v", dir.Mode(), err)
			}
		})
	}
}

// absent runs a program that makes a socket of the pipe, and returns what it says.
func absent(t *testing.T, socket string, under ...string) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(under, path, "absent")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+socket)
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// The library passes nothing to a program at the broker's name that is not the broker: one
// that does not show the process's network namespace, or could be any container's.
func TestImpostor(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, said string) {
		t.Helper()
		if !strings.Contains(said, unix.EACCES.Error()) && !strings.Contains(said, "Permission denied") {
			t.Errorf("want EACCES: %s", said)
		}
	}
	t.Run("without proof", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(privateDir(t), "p")
		refused(t, absent(t, impostor(t, socket, "/proc/self/ns/uts")))
	})
	t.Run("directory of all", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(privateDir(t), "p")
		impostor(t, socket, "/proc/self/ns/net")
		if said := absent(t, socket); strings.Contains(said, "Permission denied") {
			t.Errorf("the broker's own proof is refused: %s", said)
		}
		if err := os.Chmod(filepath.Dir(socket), 0o777); err != nil {
			t.Fatal(err)
		}
		refused(t, absent(t, socket))
		if err := pipe.CheckDir(socket); !errors.Is(err, pipe.ErrReplaceable) {
			t.Errorf("scon run says %v", err)
		}
	})
	t.Run("writable mount", func(t *testing.T) {
		t.Parallel()
		_, socket := serve(t, func(o *pipe.Options) {})
		mount := "mount --bind " + filepath.Dir(socket) + " " + filepath.Dir(socket)
		refused(t, absent(t, socket, "unshare", "--mount", "sh", "-ec", mount+` && exec "$@"`, "sh"))
		said := absent(t, socket, "unshare", "--mount", "sh", "-ec", mount+" && mount -o remount,bind,ro "+filepath.Dir(socket)+` && exec "$@"`, "sh")
		if strings.Contains(said, "Permission denied") {
			t.Errorf("a read-only mount is refused: %s", said)
		}
	})
}

// impostor answers hello at a name with a file, and the other requests with nothing.
func impostor(t *testing.T, socket, proof string) string {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(proof)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); file.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if n, err := conn.Read(make([]byte, 64)); err == nil && n > 0 {
				_, _, _ = conn.WriteMsgUnix(make([]byte, 64), unix.UnixRights(int(file.Fd())), nil)
			}
			conn.Close()
		}
	}()
	return socket
}

// privateDir is a directory that only its owner can write, whatever the umask is.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
