package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/nstest"
)

func TestFindRules(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table inet mine
		nft add chain inet mine forward { type filter hook forward priority 0 ; }
		nft add chain inet mine input { type filter hook input priority 0 ; }
		nft add rule inet mine forward ct state established accept
		nft add rule inet mine forward limit rate 10/second accept
		nft add rule inet mine input limit rate 10/second accept
		nft add rule inet mine forward log
		iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
		iptables-nft -A FORWARD -m statistic --mode nth --every 2 --packet 0 -j DROP
		iptables-nft -t mangle -A PREROUTING -j NFQUEUE
	`)
	const why = "a packet that goes express does not meet it; one packet of each lease does"
	const remedy = "'scon pause --container C' for the containers that it is about"
	want := []api.Finding{
		{Level: warn, What: "rule 2 of inet mine forward judges every packet: limit", Why: why, Remedy: remedy},
		{Level: warn, What: "rule 3 of inet mine forward judges every packet: log", Why: why, Remedy: remedy},
		{Level: warn, What: "rule 2 of ip filter FORWARD judges every packet: -m statistic", Why: why, Remedy: remedy},
		{Level: warn, What: "rule 1 of ip mangle PREROUTING judges every packet: -j NFQUEUE", Why: why, Remedy: remedy},
	}
	nstest.Do(t, ns, func() {
		if diff := cmp.Diff(want, findRules()); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
		s := lookNFTables(thisHost())
		if want := "inet mine 4 rules, ip filter 2 rules, ip mangle 1 rules"; s.level != ok || s.found != want {
			t.Errorf("got %+v, want %q", s, want)
		}
	})
}

func TestFindDevices(t *testing.T) {
	ns, container := nstest.New(t), nstest.New(t)
	nothing := []api.Finding{
		{Level: note, What: "no container on a bridge in this network namespace", Remedy: "start one, or name its namespace with --netns"},
		{Level: note, What: "no device by which traffic leaves this network namespace", Why: "no IPv4 route goes out of one"},
	}
	check := func(want []api.Finding) {
		t.Helper()
		nstest.Do(t, ns, func() {
			if diff := cmp.Diff(want, findDevices()); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	check(nothing)

	nstest.Run(t, ns, `
		ip link add br0 type bridge
		ip link set br0 up
		ip link add port0 type veth peer name eth0 netns `+container+`
		ip link set port0 master br0 up
		ip link add up0 type veth peer name far0
		ip link set up0 up
		ip link set far0 up
		ip address add 10.99.0.1/24 dev up0
		tc qdisc add dev up0 clsact
	`)
	check([]api.Finding{
		{Level: ok, What: "port port0 of br0 can be hooked"},
		{Level: ok, What: "uplink up0 can be hooked"},
	})

	nstest.Run(t, ns, `
		tc filter add dev up0 ingress protocol ip u32 match ip protocol 17 0xff classid 1:1
		ip link set far0 master br0
	`)
	got := []api.Finding{}
	nstest.Do(t, ns, func() { got = findDevices() })
	if len(got) != 3 || got[0].Level != ok || got[1].What != "uplink up0 stays regular" || got[1].Level != warn || got[1].Why == "" ||
		got[2].What != "far0 stays regular" || got[2].Level != note {
		t.Errorf("a foreign filter and a veth without a container: %+v", got)
	}
}
