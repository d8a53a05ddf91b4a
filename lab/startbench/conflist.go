package startbench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/host/programs"
)

// Names and limits that all networks share.
const (
	networkName = "startbench"
	subnet      = "10.88.0.0/16"
	gateway     = "10.88.0.1"
	bridgeName  = "cni0"
	uplink      = "up0"  // parent of macvlans
	wire        = "wire" // the uplink's peer

	// Bandwidth of a container with QoS, in both directions: rate in bits per
	// second, and burst in bits.
	qosRate  = 100_000_000
	qosBurst = 8_000_000
)

// noopPlugin answers every verb without an action: it costs one process, as any
// plugin does. Its result has an address because CRI requires one.
const noopPlugin = `#!/bin/busybox sh
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'"$CNI_NETNS"'"}], "ips": [{"interface": 0, "address": "10.88.0.2/16"}]}'
`

// object is a JSON object.
type object = map[string]any

// lists returns the CNI configuration lists of a mode.
func (b *bed) lists(m Mode) []object {
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
		return b.sconLists(m)
	}
	if m.QoS {
		plugins = append(plugins, object{"type": "bandwidth",
			"ingressRate": qosRate, "ingressBurst": qosBurst, "egressRate": qosRate, "egressBurst": qosBurst})
	}
	return []object{{"cniVersion": "1.0.0", "name": networkName, "plugins": plugins}}
}

// hostLocal returns the configuration of the CNI project's IPAM plugin host-local.
func (b *bed) hostLocal() object {
	return object{
		"type":    "host-local",
		"dataDir": filepath.Join(b.dir, "addresses"),
		"ranges":  [][]object{{{"subnet": subnet, "gateway": gateway}}},
		"routes":  []object{{"dst": "0.0.0.0/0"}},
	}
}

// writeNetworks writes a mode's lists to the directory that engines read as well,
// and returns their paths, none without a network.
func (b *bed) writeNetworks(m Mode) (paths []string, err error) {
	if m.Network == NetworkNone {
		return nil, nil
	}
	if err := os.MkdirAll(b.networksDir(), 0o755); err != nil {
		return nil, err
	}
	for i, list := range b.lists(m) {
		text, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return nil, err
		}
		path := filepath.Join(b.networksDir(), fmt.Sprintf("%04d.conflist", i))
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func (b *bed) networksDir() string { return filepath.Join(b.dir, "net.d") }

// writeNoop writes the no-op plugin.
func (b *bed) writeNoop() error {
	return os.WriteFile(filepath.Join(b.dir, "scon-noop"), []byte(noopPlugin), 0o755)
}

// pluginDirs returns the search path for plugins.
func (b *bed) pluginDirs(m Mode) ([]string, error) {
	dirs := []string{b.dir, stockPlugins}
	if !m.scon() {
		return dirs, nil
	}
	plugin, err := programs.Find("scon-cni")
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", m.Name, err)
	}
	return append([]string{filepath.Dir(plugin)}, dirs...), nil
}
