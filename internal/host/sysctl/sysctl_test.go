package sysctl

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// A Reader follows a setting, and the device of a name.
func TestReader(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "ip link add dev0 type bridge")
	const setting = "net/ipv4/conf/dev0/rp_filter"
	nstest.Do(t, ns, func() {
		r := NewReader()
		defer r.Close()
		read := func(want string) {
			t.Helper()
			if got, err := r.Read(setting); got != want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, want)
			}
		}
		set := func(value string) {
			t.Helper()
			if err := Set([]Setting{{setting, value}}); err != nil {
				t.Fatal(err)
			}
		}
		set("1")
		read("1")
		set("2")
		read("2")
		nstest.Run(t, ns, "ip link del dev0\nip link add dev0 type bridge")
		set("1")
		read("1")
		nstest.Run(t, ns, "ip link set dev0 name dev1")
		if got, err := r.Read(setting); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q, %v of a device that is gone", got, err)
		}
		if _, err := r.Read("net/ipv4/conf/dev1/rp_filter"); err != nil {
			t.Error(err)
		}
		r.Trim()
		r.Trim()
		if len(r.files) != 0 {
			t.Errorf("%d files are open that nobody reads", len(r.files))
		}
	})
}
