package rules

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/nstest"
)

// legacyBlob reads a table as the kernel stores it.
func legacyBlob(t testing.TB, ns, table string) (blob []byte, layout legacyLayout) {
	t.Helper()
	nstest.Do(t, ns, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		info := make([]byte, legacyInfoSize)
		copy(info, table)
		if _, err := getsockopt(fd, soGetInfo, info); err != nil {
			t.Fatal(err)
		}
		if layout, err = parseLegacyInfo(info); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, legacyEntriesHeader+int(layout.size))
		copy(b, table)
		binary.NativeEndian.PutUint32(b[legacyNameSize:], layout.size)
		if _, err := getsockopt(fd, soGetEntries, b); err != nil {
			t.Fatal(err)
		}
		blob = b[legacyEntriesHeader:]
	})
	return blob, layout
}

// FuzzLegacy holds that no answer of the kernel can make the parser fail other
// than by an error, nor make the following of rules endless.
func FuzzLegacy(f *testing.F) {
	ns := nstest.New(f)
	nstest.Run(f, ns, `
		iptables-legacy -N LOGGING
		iptables-legacy -A LOGGING -m limit -j LOG
		iptables-legacy -A FORWARD -p tcp -m multiport --dports 80,400:500 -m conntrack --ctstate NEW,ESTABLISHED -g LOGGING
		iptables-legacy -A FORWARD -m iprange --src-range 10.0.0.1-10.0.0.9 -i eth+ -j LOGGING
		iptables-legacy -A FORWARD -p tcp --syn -j DROP
	`)
	blob, layout := legacyBlob(f, ns, "filter")
	f.Add(blob, layout.hooks, layout.entries[2])
	f.Add([]byte{}, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, hooks, begin uint32) {
		l := legacyLayout{hooks: hooks & 31, size: uint32(len(b))}
		l.entries = layout.entries
		l.entries[2] = begin
		bases, err := parseLegacy("filter", l, b, Options{})
		if err != nil {
			return
		}
		newRuleset(bases).Touches(outbound(tcp, "443"))
	})
}

func TestLegacyTablesAreNotMade(t *testing.T) {
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		if _, err := Read(Options{}); err != nil {
			t.Fatal(err)
		}
	})
	if names := nstest.Run(t, ns, "cat "+legacyNames); names != "" {
		t.Errorf("reading made the tables %q", names)
	}
}

func TestLegacyCutShort(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "iptables-legacy -A FORWARD -p tcp -m limit -j LOG")
	blob, layout := legacyBlob(t, ns, "filter")
	if _, err := parseLegacy("filter", layout, blob, Options{}); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(blob); n += 8 {
		// A cut between two entries may leave a table that makes sense.
		bases, err := parseLegacy("filter", layout, blob[:n], Options{})
		if err == nil {
			newRuleset(bases)
		}
	}
	if _, err := parseLegacyInfo(make([]byte, legacyInfoSize-1)); err == nil {
		t.Error("information that is cut short is taken")
	}
}
