package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

// What slows containers down outside of SCON is named while it is there.
func TestFindSpeed(t *testing.T) {
	ns, container := nstest.New(t), nstest.New(t)
	nstest.Run(t, ns, `
		ip link add br0 type bridge
		ip link set br0 up
		ip link add port0 type veth peer name eth0 netns `+container+`
		ip link set port0 master br0 up
		ip link add up0 type veth peer name far0
		ip link set up0 up
		ip link set far0 up
		ip address add 10.99.0.1/24 dev up0
		ip link add vx0 type vxlan id 7 dstport 4789 local 10.99.0.1
		nft add table inet mine
		nft add chain inet mine forward { type filter hook forward priority 0 ; }
		ethtool -K up0 gro on
	`)
	h := thisHost()
	h.root = t.TempDir() // no process of this machine
	for _, file := range []string{"self/net", "sys/net/bridge"} {
		if err := os.MkdirAll(filepath.Join(h.root, "proc", file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, levels ...string) {
		t.Helper()
		var found []api.Finding
		nstest.Do(t, ns, func() { found = findSpeed(h) })
		var got []string
		for _, f := range found {
			got = append(got, f.What)
			if f.Level != note || f.Why == "" || f.Remedy == "" || strings.Contains(f.Remedy, "%") {
				t.Errorf("%s: %+v", what, f)
			}
		}
		if diff := check.Diff(levels, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("nothing")

	nstest.Run(t, ns, `
		ethtool -K port0 tso off
		ethtool -K br0 gso off
		ethtool -K up0 gro off
		ethtool -K vx0 tx-checksum-ip-generic off
		ip link set up0 mtu 1400
	`)
	offloads := []string{
		"TCP segmentation offload is off at port0",
		"generic segmentation offload is off at br0",
		"generic receive offload (GRO) is off at up0",
		"checksum offload is off at the VXLAN device vx0",
		"containers of br0 have an MTU of 1500, and uplink up0 has 1400",
	}
	want("offloads and MTU", offloads...)

	setting := filepath.Join(h.root, "proc/sys/net/bridge/bridge-nf-call-iptables")
	if err := os.WriteFile(setting, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("empty chains", append(offloads, "bridge netfilter is on (net.bridge.bridge-nf-call-iptables), and no rule concerns forwarded packets")...)
	nstest.Run(t, ns, "nft add rule inet mine forward accept")
	want("a rule", offloads...)

	if err := os.MkdirAll(filepath.Join(h.root, "proc/99"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.root, "proc/99/comm"), []byte("docker-proxy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("userland proxy", append(offloads, "connections from this machine to its published ports at 127.0.0.1 pass docker-proxy")...)
}
