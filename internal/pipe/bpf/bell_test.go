package bpf

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// A doorbell passes single bytes, and no files: by these two processes could pass each other a
// socket of their own, which no change of rules ends. The filter drops files on all kernels, here
// on a pair of sockets that passes them otherwise.
func TestBellPassesNoFiles(t *testing.T) {
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	if version < 6<<16|1<<8 {
		t.Skip("missing: Linux 6.1, for the engine bpf")
	}
	k, err := New(slog.New(slog.DiscardHandler), new(sync.Mutex))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	arrives := func(packet, rights []byte) (n, files int) {
		if err := unix.Sendmsg(pair[0], packet, rights, nil, unix.MSG_DONTWAIT); err != nil {
			t.Fatal(err)
		}
		oob := make([]byte, unix.CmsgSpace(4))
		n, oobn, _, _, err := unix.Recvmsg(pair[1], make([]byte, 8), oob, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return -1, 0
		}
		messages, parseErr := unix.ParseSocketControlMessage(oob[:oobn])
		if err = errors.Join(err, parseErr); err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
			files += len(fds)
		}
		return n, files
	}
	file := unix.UnixRights(int(os.Stdin.Fd()))
	if n, files := arrives([]byte{1}, file); n != 1 || files != 1 {
		t.Fatalf("without the filter: %d bytes and %d files, want 1 and 1", n, files)
	}
	if _, err := k.restrict(pair[1]); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what           string
		packet, rights []byte
		want           int
	}{
		{"one byte", []byte{1}, nil, 1},
		{"a file", []byte{1}, file, -1},
		{"two bytes", []byte{1, 2}, nil, -1},
		{"one byte again", []byte{1}, nil, 1},
	} {
		if n, files := arrives(c.packet, c.rights); n != c.want || files != 0 {
			t.Errorf("%s: %d bytes and %d files have arrived, want %d and 0", c.what, n, files, c.want)
		}
	}
}

// A filter that looks for files elsewhere than they are is found out.
func TestBellIsChecked(t *testing.T) {
	spec, err := loadPipecopy()
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[uint32]error{filesAt(): nil, filesAt() + 4096: errPassesFiles} {
		if err := spec.Variables["files_at"].Set(at); err != nil {
			t.Fatal(err)
		}
		var objs struct {
			Bell *ebpf.Program `ebpf:"scon_pipe_bell"`
		}
		if err := spec.Copy().LoadAndAssign(&objs, nil); err != nil {
			t.Fatal(err)
		}
		k := &Program{objs: pipecopyObjects{pipecopyPrograms: pipecopyPrograms{SconPipeBell: objs.Bell}}}
		if err := k.checkBell(); !errors.Is(err, want) {
			t.Errorf("at %d: %v, want %v", at, err, want)
		}
		objs.Bell.Close()
	}
}
