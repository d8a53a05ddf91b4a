package pipe

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// A container with mostHung closes that hang is refused until one has ended, others are not.
func TestHungIsPerContainer(t *testing.T) {
	t.Parallel()
	h := hung{of: make(map[quota.Account]int)}
	one, other := quota.Owner{Netns: 1, Cgroup: "/one"}, quota.Owner{Netns: 2, Cgroup: "/other"}
	for n := range mostHung {
		if err := h.has(one); err != nil {
			t.Fatalf("with %d: %v", n, err)
		}
		if most := h.change(one, 1); most != (n == mostHung-1) {
			t.Errorf("with %d: %v", n+1, most)
		}
	}
	if err := h.has(one); !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v, want %v", err, unix.EBUSY)
	}
	if err := h.has(other); err != nil {
		t.Error(err)
	}
	h.change(one, -1)
	if err := h.has(one); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for range mostHung - 1 {
		h.change(one, -1)
	}
	if len(h.of) != 0 {
		t.Errorf("left: %v", h.of)
	}
}

// packet is one that a client leaves unread.
type packet struct {
	bytes int
	files []int
}

// unread returns the broker's end of a session's socket, in which packets are unread.
func unread(t *testing.T, packets []packet) *net.UnixConn {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	file := os.NewFile(uintptr(pair[1]), "session")
	defer file.Close()
	for _, p := range packets {
		var oob []byte
		if len(p.files) > 0 {
			oob = unix.UnixRights(p.files...)
		}
		if err := unix.Sendmsg(pair[0], make([]byte, p.bytes), oob, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

// A socket in which files are unread is not closed at once, whatever packets are before them,
// also some of no bytes; one with other packets is.
func TestIsClean(t *testing.T) {
	t.Parallel()
	files := []int{int(os.Stdin.Fd()), int(os.Stdin.Fd())}
	for what, c := range map[string]struct {
		packets []packet
		clean   bool
	}{
		"nothing":                      {nil, true},
		"bytes":                        {[]packet{{bytes: 64}, {bytes: 1}}, true},
		"no bytes":                     {[]packet{{}, {}}, true},
		"a file":                       {[]packet{{bytes: 1, files: files[:1]}}, false},
		"two files":                    {[]packet{{bytes: 1, files: files}}, false},
		"bytes, then a file":           {[]packet{{bytes: 64}, {bytes: 1, files: files[:1]}}, false},
		"no bytes, twice, then a file": {[]packet{{}, {}, {bytes: 1, files: files[:1]}}, false},
	} {
		if got := isClean(unread(t, c.packets)); got != c.clean {
			t.Errorf("%s: %v, want %v", what, got, c.clean)
		}
	}
}
