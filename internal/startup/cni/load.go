package cni

import (
	"encoding/json"
	"fmt"
	"os"
)

// PluginName is the type of SCON's plugin in a configuration.
const PluginName = "scon-cni"

// Load reads SCON's configuration from a file as runtimes read it: a list of plugins, or
// one plugin's configuration.
func Load(path string) (*Conf, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read network: %w", err)
	}
	var list struct {
		CNIVersion string                       `json:"cniVersion"`
		Name       string                       `json:"name"`
		Plugins    []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("read network %s: %w", path, err)
	}
	if list.Plugins == nil {
		return named(path, content)
	}
	for _, p := range list.Plugins {
		if string(p["type"]) != `"`+PluginName+`"` {
			continue
		}
		for key, value := range map[string]string{"name": list.Name, "cniVersion": list.CNIVersion} {
			if p[key], err = json.Marshal(value); err != nil {
				return nil, err
			}
		}
		one, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		return named(path, one)
	}
	return nil, fmt.Errorf("read network %s: it has no plugin of type %s", path, PluginName)
}

func named(path string, content []byte) (*Conf, error) {
	c, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("read network %s: %w", path, err)
	}
	return c, nil
}
