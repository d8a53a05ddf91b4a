package startbench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// What the networks have in common.
const (
	networkName = "startbench"
	subnet      = "10.88.0.0/16"
	gateway     = "10.88.0.1"
	bridgeName  = "cni0"
	uplink      = "up0"  // what macvlans are made of
	wire        = "wire" // its other end

	// Bandwidth of a container with QoS, in both directions: bits a second,
	// and bits that may come at once.
	qosRate  = 100_000_000
	qosBurst = 8_000_000
)

// noopPlugin answers every verb and does nothing: a process is started, as for
// any plugin, and no more. CRI asks for an address.
const noopPlugin = `#!/bin/busybox sh
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'"$CNI_NETNS"'"}], "ips": [{"interface": 0, "address": "10.88.0.2/16"}]}'
`

// object is one of JSON.
type object = map[string]any

// list of a mode: what the plugins are told.
func (b *bed) list(m Mode) object {
	var plugins []object
	switch m.Network {
	case NetworkNoop:
		plugins = []object{{"type": "scon-noop"}}
	case NetworkBridge:
		plugins = []object{{"type": "bridge", "bridge": bridgeName, "isGateway": true, "ipam": b.hostLocal()}}
	case NetworkPTP:
		plugins = []object{{"type": "ptp", "ipam": b.hostLocal()}}
	case NetworkMacvlan:
		plugins = []object{{"type": "macvlan", "master": uplink, "mode": "bridge", "ipam": b.hostLocal()}}
	default:
		return b.sconList(m)
	}
	if m.QoS {
		plugins = append(plugins, object{"type": "bandwidth",
			"ingressRate": qosRate, "ingressBurst": qosBurst, "egressRate": qosRate, "egressBurst": qosBurst})
	}
	return object{"cniVersion": "1.0.0", "name": networkName, "plugins": plugins}
}

// hostLocal is the CNI project's own management of addresses.
func (b *bed) hostLocal() object {
	return object{
		"type":    "host-local",
		"dataDir": filepath.Join(b.dir, "addresses"),
		"ranges":  [][]object{{{"subnet": subnet, "gateway": gateway}}},
		"routes":  []object{{"dst": "0.0.0.0/0"}},
	}
}

// writeNetwork writes a mode's list where an engine looks for it, too, and
// returns its path, "" for no network.
func (b *bed) writeNetwork(m Mode) (string, error) {
	if m.Network == NetworkNone {
		return "", nil
	}
	text, err := json.MarshalIndent(b.list(m), "", "  ")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.dir, "net.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "10-"+networkName+".conflist")
	return path, os.WriteFile(path, text, 0o644)
}

// writeNoop makes the plugin that does nothing.
func (b *bed) writeNoop() error {
	return os.WriteFile(filepath.Join(b.dir, "scon-noop"), []byte(noopPlugin), 0o755)
}

// pluginDirs are where plugins are looked for.
func (b *bed) pluginDirs(m Mode) ([]string, error) {
	dirs := []string{b.dir, stockPlugins}
	if !m.scon() {
		return dirs, nil
	}
	plugin, err := beside("scon-cni")
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", m.Name, err)
	}
	return append([]string{filepath.Dir(plugin)}, dirs...), nil
}
