package startbench

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/state"
)

// kindVeth is the default kind of SCON's lists.
const kindVeth = "veth"

// checkScon refuses options that the mode's kind of network does not support.
func (m Mode) checkScon() error {
	n := cni.Network{Kind: m.Kind}
	switch {
	case m.Kind == cni.OVS:
		return fmt.Errorf("kind %s: the bench does not start Open vSwitch", m.Kind)
	case m.Tenants > 0 && n.HasMaster() && m.Kind != cni.TCRouting:
		return fmt.Errorf("tenants: those of kind %s would share the one uplink, and reach each other: want kind veth, ptp, netkit or tc-routing", m.Kind)
	case m.QoS && m.Kind != "" && !devices.HasHost(m.Kind):
		return fmt.Errorf("qos: kind %s has no device on the host to limit the rate to the container at", m.Kind)
	}
	p := (&bed{dir: "/"}).sconPlugin(m, 0)
	p["cniVersion"], p["name"] = "1.0.0", networkName
	text, err := json.Marshal(p)
	if err == nil {
		_, err = cni.Parse(text)
	}
	return err
}

// sconLists returns the lists of a SCON mode: one, or one for each tenant.
func (b *bed) sconLists(m Mode) (lists []object) {
	for t := range max(1, m.Tenants) {
		lists = append(lists, object{"cniVersion": "1.0.0", "name": tenantName(m, t), "plugins": []object{b.sconPlugin(m, t)}})
	}
	return lists
}

// tenantName returns the name of a tenant's network: the default name without
// tenants.
func tenantName(m Mode, tenant int) string {
	if m.Tenants == 0 {
		return networkName
	}
	return fmt.Sprintf("%s%d", networkName, tenant)
}

func (b *bed) sconPlugin(m Mode, tenant int) object {
	p := object{
		"type":   "scon-cni",
		"socket": state.Startup.Socket(b.agentDir()),
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
		if p["master"] != nil { // macvlans share one parent
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

// rules returns n rules of a security group. The first accepts pings.
func rules(n int) []object {
	all := []object{{"direction": "ingress", "protocol": "icmp"}}
	for port := 1; len(all) < n; port++ {
		all = append(all, object{"direction": "ingress", "protocol": "tcp", "port": port})
	}
	return all
}

// sconOrder completes the order of a SCON mode.
func (b *bed) sconOrder(m Mode, o *Order) error {
	if !m.OCI && !m.Admission {
		return nil
	}
	if o.Runtime == RuntimeMicroVM || o.Launcher == LauncherCRI {
		return nil // scon-oci wraps runc and runsc only
	}
	wrapper, err := programs.Find("scon-oci")
	if err != nil {
		return err
	}
	o.Wrapper = wrapper
	o.Env = []string{"SCON_SOCKET=" + state.Startup.Socket(b.agentDir()), "SCON_RUNTIME=" + o.Runtime}
	if m.OCI {
		o.PathGiven = true
		o.Env = append(o.Env, "SCON_NETWORK="+networkName)
	}
	return nil
}
