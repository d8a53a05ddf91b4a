package config

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Selector selects devices or containers for the setting regular. One of Device, Name and
// Label is set.
type Selector struct {
	Device string  // a port or an uplink
	Name   string  // a container's name or ID
	Label  string  // a container's label; nil Value matches any value
	Value  *string `json:",omitempty"`
}

// String returns the selector in the form of the file.
func (s Selector) String() string {
	switch {
	case s.Name != "":
		return "name=" + s.Name
	case s.Label != "" && s.Value != nil:
		return "label=" + s.Label + "=" + *s.Value
	case s.Label != "":
		return "label=" + s.Label
	}
	return s.Device
}

func parseSelector(text string) (s Selector, ok bool) {
	key, value, isPair := strings.Cut(text, "=")
	switch {
	case !isPair:
		return Selector{Device: text}, validDevice(text)
	case key == "name":
		return Selector{Name: value}, value != ""
	case key == "label":
		label, want, exact := strings.Cut(value, "=")
		s.Label = label
		if exact {
			s.Value = &want
		}
		return s, label != ""
	}
	return s, false
}

const wantSelectors = "want a list of devices, name=CONTAINER, label=KEY or label=KEY=VALUE, such as [eth1, name=db]; [] for none"

var regular = key{
	name: "regular",
	read: func(c *Config, n ast.Node) error {
		list, err := texts(n, wantSelectors)
		if err != nil {
			return err
		}
		c.Regular = nil
		for i, text := range list {
			s, ok := parseSelector(text)
			if !ok {
				return ofElement(i, "has %q: %s", text, wantSelectors)
			}
			if slices.Contains(list[:i], text) {
				return ofElement(i, "names %q twice", text)
			}
			c.Regular = append(c.Regular, s)
		}
		return nil
	},
	check: func(*Config) error { return nil },
}
