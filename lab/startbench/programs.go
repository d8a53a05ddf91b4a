package startbench

import "github.com/scon-project/scon/test/bed/needs"

// busybox is in the root of all containers.
var busybox = needs.Program{Name: "busybox", Package: "busybox-static"}

// stockPlugins is Debian's folder of the CNI project's plugins.
const stockPlugins = "/usr/lib/cni"

// plugins returns the plugins of the CNI project that a mode calls.
func (m Mode) plugins() (plugins []string) {
	if m.networked() {
		plugins = []string{m.Network, "host-local"}
	}
	if m.QoS {
		plugins = append(plugins, "bandwidth")
	}
	return plugins
}
