package startup

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// tenantConf is a network of a tenant: network n has the subnet 10.88.n.0/24.
func (b *bed) tenantConf(tenant string, n int, port string, more ...string) string {
	c := strings.Replace(b.conf(append([]string{port, fmt.Sprintf(`"tenant": %q`, tenant)}, more...)...), `"bridge": "br0", "isGateway": true,`, "", 1)
	c = strings.Replace(c, `"name": "net"`, fmt.Sprintf(`"name": "net%d"`, n), 1)
	return strings.Replace(c, "10.88.0.0/24", fmt.Sprintf("10.88.%d.0/24", n), 1)
}

// reaches reports whether an address answers pings of a namespace within seconds.
func reaches(ns, addr string, seconds int) bool {
	return exec.Command("nsenter", "--net="+netns.Path(ns), "ping", "-n", "-q", "-c1", fmt.Sprint("-w", seconds), addr).Run() == nil
}

// pings returns the number of pings that a namespace received.
func pings(t *testing.T, ns string) string {
	t.Helper()
	return strings.Fields(nstest.Run(t, ns, "nstat -asz IcmpInEchos"))[2]
}

// wantReach fails unless addresses answer as expected.
func wantReach(t *testing.T, ns string, want map[string]bool) {
	t.Helper()
	for addr, answers := range want {
		seconds := 1
		if answers {
			seconds = 10
		}
		if got := reaches(ns, addr, seconds); got != answers {
			t.Errorf("from %s, %s answers: %v", ns, addr, got)
		}
	}
}

// Containers of a tenant reach each other and outside hosts, but not those of another tenant,
// also not through the host.
func TestTenantsApart(t *testing.T) {
	for kind, port := range map[string]string{
		"veth": `"isGateway": true, "bridge": "br%d"`,
		"ptp":  `"kind": "ptp"`,
	} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			b.start()
			pods := make([]string, 4)
			confs := make([]string, 4)
			for n, tenant := range []string{"a", "a", "b", ""} {
				own := port
				if kind == "veth" {
					own = fmt.Sprintf(port, n)
				}
				confs[n] = b.tenantConf(tenant, n, own)
				pods[n] = nstest.New(t)
				b.want(b.cni("ADD", fmt.Sprint(n), netns.Path(pods[n]), confs[n]))
			}
			wantReach(t, pods[0], map[string]bool{"10.88.0.1": true, "10.88.1.2": true, "10.88.2.2": false, "10.88.3.2": true})
			wantReach(t, pods[2], map[string]bool{"10.88.2.1": true, "10.88.0.2": false})
			// Nor with another container's address or an unused one.
			echoes := pings(t, pods[2])
			for _, from := range []string{"10.88.2.9", "203.0.113.7"} {
				nstest.Run(t, pods[0], "ip addr add "+from+"/32 dev lo")
				_ = exec.Command("nsenter", "--net="+netns.Path(pods[0]), "ping", "-n", "-q", "-c1", "-W1", "-I", from, "10.88.2.2").Run()
			}
			if got := pings(t, pods[2]); got != echoes {
				t.Errorf("a container got %s pings of another tenant's, %s before", got, echoes)
			}
			nstest.Do(t, b.host, func() {
				set, err := rules.Read(rules.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if judged := set.PerPacket(); len(judged) > 0 {
					t.Errorf("no connection would go express: %v", judged)
				}
			})
			for n := range pods {
				b.want(b.cni("DEL", fmt.Sprint(n), netns.Path(pods[n]), confs[n]))
			}
			b.stop()
			b.wantNothing()
			if out := nstest.Run(t, b.host, "nft list tables"); strings.Contains(out, "scon_tenants") {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// A network that would connect tenants is refused.
func TestTenantsRefused(t *testing.T) {
	b := newBed(t)
	nstest.Run(t, b.host, "ip link add m0 type veth peer name g0")
	b.start()
	for want, confs := range map[string][2]string{
		"one for each tenant": {
			b.tenantConf("a", 0, `"bridge": "br0"`), b.tenantConf("b", 1, `"bridge": "br0"`),
		},
		"or sharing multi-tenant": {
			b.tenantConf("a", 2, `"kind": "macvlan", "master": "m0"`), b.tenantConf("b", 3, `"kind": "macvlan", "master": "m0"`),
		},
		"distinct subnets for each tenant": {
			b.tenantConf("a", 4, `"kind": "ptp"`), strings.Replace(b.tenantConf("b", 5, `"kind": "ptp"`), "10.88.5.0/24", "10.88.4.0/25", 1),
		},
	} {
		b.want(b.cni("ADD", "a", netns.Path(nstest.New(t)), confs[0]))
		a := b.cni("ADD", "b", netns.Path(nstest.New(t)), confs[1])
		if a.code != 1 || !strings.Contains(a.out, want) || !strings.Contains(a.out, `"code":7`) {
			t.Errorf("want %q: %d %s", want, a.code, a.out)
		}
	}
	// Also by an agent that knows the first one only from its records.
	b.kill()
	b.start()
	if a := b.cni("ADD", "b", netns.Path(nstest.New(t)), b.tenantConf("b", 1, `"bridge": "br0"`)); a.code != 1 {
		t.Errorf("after a restart: %s", a.out)
	}
}
