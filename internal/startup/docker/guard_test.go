package docker

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/nstest"
)

// localnet returns route_localnet of a bridge.
func (w *world) localnet(id string) (value string) {
	w.t.Helper()
	w.do(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + w.driver.networks[id].Bridge + "/route_localnet")
		value = strings.TrimSpace(string(b))
		return err
	})
	return value
}

// Rules that another program removes are restored, and route_localnet is set only on
// bridges with a published port.
func TestGuard(t *testing.T) {
	w := newWorld(t)
	const first, second, third = "aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccc"
	const internalID = "3333333333333333333333333333333333333333333333333333333333333333"
	internal := request(internalID, "172.28.0.0/24", "172.28.0.1/24", nil)
	internal.Options[labelInternal] = true
	w.do(func() error {
		return errors.Join(
			w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)),
			w.driver.CreateNetwork(request(otherID, "172.29.0.0/24", "172.29.0.1/24", nil)),
			w.driver.CreateNetwork(internal))
	})
	web := w.run(netID, first, "172.30.0.2", tcp("", 8080, 80))
	other := w.run(otherID, second, "172.29.0.2")
	hidden := w.run(internalID, third, "172.28.0.2")
	w.serve(web, "web")
	w.serve(hidden, "hidden")
	w.serve(w.host, "host")
	// A container may send packets for 127.0.0.1 to the host.
	for _, c := range []struct{ ns, gateway string }{{web, "172.30.0.1"}, {other, "172.29.0.1"}} {
		nstest.Run(t, c.ns, `
			ip addr flush dev lo
			sysctl -qw net.ipv4.conf.eth0.route_localnet=1
			ip route add 127.0.0.1 via `+c.gateway)
	}
	check := func() {
		t.Helper()
		var all sync.WaitGroup // what is not reached takes a second
		for _, c := range []struct{ ns, addr, want string }{
			{w.outside, "192.0.2.2:8080", "web"},
			{w.host, "127.0.0.1:8080", "web"},
			{other, "192.0.2.2:8080", "web"},
			{other, "172.30.0.2:80", ""},
			{other, "172.28.0.2:80", ""},
			{w.outside, "172.30.0.2:80", ""},
			{web, "127.0.0.1:80", ""},
			{other, "127.0.0.1:80", ""},
		} {
			all.Go(func() { w.reaches(c.ns, c.addr, c.want) })
		}
		all.Wait()
		if got := w.localnet(netID) + w.localnet(otherID) + w.localnet(internalID); got != "100" {
			t.Errorf("route_localnet is %q, want 1 only where a port is published", got)
		}
	}
	check()
	for name, attack := range map[string]string{
		"flush of the ruleset":     "nft flush ruleset",
		"removal of the table":     "nft delete table inet " + tableName,
		"flush of a chain":         "nft flush chain inet " + tableName + " raw",
		"a rule ahead of the rest": "nft insert rule inet " + tableName + " forward accept",
		"removal of a rule":        "h=$(nft -a list chain inet " + tableName + " raw | sed -n 's/.*drop # handle //p' | head -n 1); nft delete rule inet " + tableName + " raw handle $h",
		"a table without effect":   "nft add table inet " + tableName + " '{ flags dormant; }'",
		"flush of iptables":        "iptables -F; iptables -X; iptables -t nat -F",
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			if out, err := exec.Command("ip", "netns", "exec", w.host, "sh", "-c", attack).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", attack, err, out)
			}
			w.do(w.driver.restoreAdmission)
			check()
		})
	}
	w.t = t
	// Rules that are in place are not written again: that would be a change, which
	// the driver follows.
	monitor := exec.Command("ip", "netns", "exec", w.host, "nft", "monitor")
	changes, err := monitor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := monitor.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // until it listens
	w.do(w.driver.restoreAdmission)
	time.Sleep(200 * time.Millisecond)
	_ = monitor.Process.Kill()
	text, _ := io.ReadAll(changes)
	_ = monitor.Wait()
	if len(text) > 0 {
		t.Errorf("rules that are in place were written again: %s", text)
	}

	// Without a driver nothing restores the rules.
	w.do(w.driver.Close)
	if got := w.localnet(netID); got != "0" {
		t.Errorf("route_localnet is %s after the driver's end, want 0", got)
	}
	w.reaches(w.outside, "192.0.2.2:8080", "web")
	nstest.Run(t, w.host, "nft flush ruleset")
	w.reaches(web, "127.0.0.1:80", "")
	w.open()
	check()
	w.crash()
	check()

	w.do(func() error {
		return w.driver.RevokeExternalConnectivity(&endpointRequest{NetworkID: netID, EndpointID: first})
	})
	if got := w.localnet(netID); got != "0" {
		t.Errorf("route_localnet is %s after the last port was revoked, want 0", got)
	}
}
