package changes

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzInotify: an event about the file is found behind any other event.
func FuzzInotify(f *testing.F) {
	f.Add([]byte("other\x00\x00\x00"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseInotify(b, "lock")
		event := func(name []byte) []byte {
			e := make([]byte, unix.SizeofInotifyEvent)
			binary.NativeEndian.PutUint32(e[12:], uint32(len(name)))
			return append(e, name...)
		}
		if found, _ := parseInotify(append(event(b), event([]byte("lock\x00\x00\x00\x00"))...), "lock"); !found {
			t.Errorf("not found behind an event about %q", b)
		}
	})
}
