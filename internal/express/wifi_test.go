package express_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Wi-Fi with simulated radios: device is a station, edge has two access points
// on a bridge. It needs the three radios that mac80211_hwsim creates when it
// is loaded.
func TestUplinkWiFi(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"hostapd", "iw"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s: Debian's package of that name has it", program)
		}
	}
	for n := range 3 {
		if _, err := os.Stat(fmt.Sprintf("/sys/class/ieee80211/phy%d/device/net/wlan%[1]d", n)); err != nil {
			t.Skip("there are no radios of software: modprobe mac80211_hwsim radios=3")
		}
	}
	uplink{lay: station, change: roam, remove: "iw dev up0 del"}.test(t)
}

// station connects device with the first access point.
func station(b *scontest.Bed) {
	b.T.Helper()
	bridgePorts(b, lab.Edge, "up0")
	b.Sh(lab.Edge, "ip link set up0 up")
	for n, channel := range []int{1, 6} {
		startAccessPoint(b, n, channel)
	}
	moveRadio(b, 2, lab.Device)
	b.Sh(lab.Device, `
		ip link set wlan2 name up0
		ip link set up0 up`)
	join(b, 2412)
}

// moveRadio gives a radio to a node.
func moveRadio(b *scontest.Bed, n int, node string) {
	b.T.Helper()
	name := filepath.Base(b.Node(node))
	if out, err := exec.Command("iw", "phy", fmt.Sprintf("phy%d", n), "set", "netns", "name", name).CombinedOutput(); err != nil {
		b.T.Fatalf("giving radio %d to %s: %v: %s", n, node, err, out)
	}
}

// startAccessPoint makes a radio an access point of edge's, until the end of the
// test.
func startAccessPoint(b *scontest.Bed, n, channel int) {
	b.T.Helper()
	moveRadio(b, n, lab.Edge)
	file := filepath.Join(b.Dir, fmt.Sprintf("ap%d", n))
	config := fmt.Sprintf("interface=wlan%d\nbridge=up0\ndriver=nl80211\nssid=scon\nhw_mode=g\nchannel=%d\n", n, channel)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		b.T.Fatal(err)
	}
	cmd := exec.Command("hostapd", file)
	if err := b.Do(lab.Edge, cmd.Start); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// join connects device with the access point of a frequency, in MHz.
func join(b *scontest.Bed, frequency int) {
	b.T.Helper()
	scontest.Eventually(b.T, "it is associated", func() error {
		return b.Do(lab.Device, func() error {
			out, err := exec.Command("iw", "dev", "up0", "connect", "-w", "scon", fmt.Sprint(frequency)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
}

// roam connects device with the other access point.
func roam(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, "iw dev up0 disconnect")
	join(b, 2437)
}
