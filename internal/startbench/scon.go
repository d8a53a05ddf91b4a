package startbench

import (
	"fmt"
	"strconv"

	"github.com/scon-project/scon/internal/state"
)

// kindVeth is the default of SCON's lists.
const kindVeth = "veth"

// sconLists are the lists of a mode of SCON's: one, or one for each tenant.
func (b *bed) sconLists(m Mode) (lists []object) {
	for t := range max(1, m.Tenants) {
		lists = append(lists, object{"cniVersion": "1.0.0", "name": tenantName(m, t), "plugins": []object{b.sconPlugin(m, t)}})
	}
	return lists
}

// tenantName is the name of a tenant's network, which is the usual one where
// there are no tenants.
func tenantName(m Mode, tenant int) string {
	if m.Tenants == 0 {
		return networkName
	}
	return fmt.Sprintf("%s%d", networkName, tenant)
}

func (b *bed) sconPlugin(m Mode, tenant int) object {
	p := object{
		"type":   "scon-cni",
		"socket": state.Socket(b.agentDir()),
		"ipam":   object{"type": "scon", "subnet": subnet, "gateway": gateway, "routes": []object{{"dst": "0.0.0.0/0"}}},
	}
	switch m.Kind {
	case "", kindVeth:
		p["bridge"], p["isGateway"] = bridgeName, true
	default:
		p["kind"] = m.Kind
		if m.Kind != NetworkPTP && m.Kind != "netkit" {
			p["master"] = uplink
		}
	}
	if m.Tenants > 0 {
		p["tenant"] = strconv.Itoa(tenant)
		if p["bridge"] != nil {
			p["bridge"] = fmt.Sprintf("%s-%d", bridgeName, tenant)
		}
		if p["master"] != nil { // there is but one
			p["sharing"] = "multi-tenant"
		}
		p["ipam"].(object)["subnet"] = fmt.Sprintf("10.%d.%d.0/24", 88+tenant/256, tenant%256)
		p["ipam"].(object)["gateway"] = fmt.Sprintf("10.%d.%d.1", 88+tenant/256, tenant%256)
	}
	if m.QoS {
		p["qos"] = object{"ingressRate": qosRate, "ingressBurst": qosBurst, "egressRate": qosRate, "egressBurst": qosBurst}
	}
	if m.Rules > 0 {
		p["rules"] = rules(m.Rules)
	}
	if b.options.Runtime == RuntimeMicroVM {
		p["tap"] = true
	}
	return p
}

// rules are n of a security group, the first of which lets pings through.
func rules(n int) []object {
	all := []object{{"direction": "ingress", "protocol": "icmp"}}
	for port := 1; len(all) < n; port++ {
		all = append(all, object{"direction": "ingress", "protocol": "tcp", "port": port})
	}
	return all
}

// sconOrder completes the order of a mode of SCON's.
func (b *bed) sconOrder(m Mode, o *Order) error {
	if !m.OCI && !m.Admission {
		return nil
	}
	if o.Runtime == RuntimeMicroVM || o.Launcher == LauncherCRI {
		return nil // scon-oci wraps runc and runsc only
	}
	wrapper, err := beside("scon-oci")
	if err != nil {
		return err
	}
	o.Wrapper = wrapper
	o.Env = []string{"SCON_SOCKET=" + state.Socket(b.agentDir()), "SCON_RUNTIME=" + o.Runtime}
	if m.OCI {
		o.PathGiven = true
		o.Env = append(o.Env, "SCON_NETWORK="+networkName)
	}
	return nil
}
