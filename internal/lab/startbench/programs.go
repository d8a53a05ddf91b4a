package startbench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// stockPlugins is where Debian keeps the plugins of the CNI project.
const stockPlugins = "/usr/lib/cni"

// beside returns a program of SCON's that stands beside this one, or is in
// $PATH.
func beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing: make build", name)
	}
	return path, nil
}

// helper is the program that package launch is in.
func helper() (string, error) { return beside("scon-bench") }

// missing tells which plugins a mode lacks.
func (m Mode) missing() error {
	if m.scon() {
		_, err := beside("scon-cni")
		return err
	}
	for _, plugin := range m.plugins() {
		if _, err := os.Stat(filepath.Join(stockPlugins, plugin)); err != nil {
			return fmt.Errorf("network %q: %s/%s is missing: apt-get install containernetworking-plugins", m.Name, stockPlugins, plugin)
		}
	}
	return nil
}

// plugins of the CNI project that a mode calls.
func (m Mode) plugins() (plugins []string) {
	if m.networked() {
		plugins = []string{m.Network, "host-local"}
	}
	if m.QoS {
		plugins = append(plugins, "bandwidth")
	}
	return plugins
}
