package k8s

import (
	"fmt"
	"strconv"
	"strings"
)

// scon-cni becomes the network of new pods, is it no longer, and is it again when the chart
// is uninstalled: the list goes each time.
func (c *cluster) testNetwork() {
	if networks[c.network] == "" {
		c.t.Skip("scon-cni is this cluster's only network")
	}
	turn := func(values, subnet string, lists int) {
		c.inChart("upgrade", "scon", "../../packaging/helm/scon", "--reset-then-reuse-values", "--set", values, "--wait", "--timeout", "3m")
		for n := 1; n <= 2; n++ {
			c.await("the list of node "+strconv.Itoa(n), func() error {
				if out := c.inNode(n, "ls /run/containerd/plugins /run/containerd/lists | grep scon || true"); strings.Count(out, "scon") != lists {
					return fmt.Errorf("want %d files of scon-cni: %s", lists, out)
				}
				return nil
			})
		}
		c.await("a pod of "+subnet, func() error { // containerd looks at its lists now and then
			c.apply(strings.ReplaceAll(client, "NAME", "later"))
			c.ready("later")
			addr := c.kubectl("get", "pod", "later", "-o", "jsonpath={.status.podIP}")
			c.kubectl("delete", "pod", "later")
			if !strings.HasPrefix(addr, subnet) {
				return fmt.Errorf("the pod has %s", addr)
			}
			return nil
		})
	}
	const on = "network.enabled=true,network.subnets.node1=10.245.1.0/24,network.subnets.node2=10.245.2.0/24,network.plugins=/run/containerd/plugins,network.lists=/run/containerd/lists"
	turn(on, "10.245.2.", 2)
	turn("network.enabled=false", "10.244.2.", 0)
	turn(on, "10.245.2.", 2)
}
