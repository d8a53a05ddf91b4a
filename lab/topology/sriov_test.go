package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sysfs of a device with two virtual functions, the second of which is in another
// namespace.
func TestVFDevice(t *testing.T) {
	sys := t.TempDir()
	device := filepath.Join(sys, "port1", "device")
	for _, dir := range []string{"virtfn0/net/port1v0", "virtfn1/net"} {
		if err := os.MkdirAll(filepath.Join(device, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(device, "sriov_numvfs"), []byte("2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := vfDevice(sys, "port1", 0); err != nil || got != "port1v0" {
		t.Errorf("VF 0 is %q, %v", got, err)
	}
	for _, tc := range []struct {
		pf   string
		vf   int
		want string
	}{
		{"port1", 1, "VF 1 of port1 is in another namespace already"},
		{"port1", 2, "port1 has no VF 2 with a network driver, of 2; to have one: echo 3 > "},
		{"port2", 0, `this machine has no device "port2"`},
	} {
		if _, err := vfDevice(sys, tc.pf, tc.vf); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("VF %d of %s: %v, want %q in it", tc.vf, tc.pf, err, tc.want)
		}
	}
}
