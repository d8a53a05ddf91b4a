package startbench

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/host/programs"
)

// stockPlugins is Debian's folder of the CNI project's plugins.
const stockPlugins = "/usr/lib/cni"

// missing returns an error that names the plugins that a mode lacks.
func (m Mode) missing() error {
	if m.scon() {
		_, err := programs.Find("scon-cni")
		return err
	}
	for _, plugin := range m.plugins() {
		if _, err := os.Stat(filepath.Join(stockPlugins, plugin)); err != nil {
			return fmt.Errorf("network %q: %s/%s is missing: apt-get install containernetworking-plugins", m.Name, stockPlugins, plugin)
		}
	}
	return nil
}

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
