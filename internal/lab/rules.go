package lab

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/template"
)

// What Options.Rules may be besides a file.
const (
	// RulesDocker are the chains and rules of Docker 20.10 with every
	// container's Publications, loaded with iptables-nft.
	RulesDocker = "docker"
	// RulesNone forward everything and masquerade what leaves the bridge.
	RulesNone = "none"
)

var (
	//go:embed docker.rules
	dockerRules string
	//go:embed none.nft
	noneRules string
)

// Publication is a port of device that the docker rules translate to a port of
// a container, for TCP and for UDP.
type Publication struct {
	Device, Container uint16
}

// Publications returns the ports that container n publishes: device's port
// 8000+n is its port 80, and 5200+n is its port 5201.
func Publications(n int) []Publication {
	return []Publication{
		{Device: 8000 + uint16(n), Container: 80},
		{Device: 5200 + uint16(n), Container: 5201},
	}
}

// ruleset is text for the tool that loads it.
type ruleset struct {
	text     string
	iptables bool // in iptables-save's format, else an nft script
}

// readRules returns the rules that Options.Rules name.
func readRules(name string, containers int) (ruleset, error) {
	switch name {
	case "", RulesDocker:
		return expandDocker(containers)
	case RulesNone:
		return ruleset{text: noneRules}, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return ruleset{}, fmt.Errorf("rules %q are neither %s, %s nor a file: %w", name, RulesDocker, RulesNone, err)
	}
	return ruleset{text: string(text), iptables: isIPTables(string(text))}, nil
}

// isIPTables tells iptables-save's format, which opens with "*TABLE", from an
// nft script.
func isIPTables(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' {
			return line[0] == '*'
		}
	}
	return false
}

// container is what the docker rules need to know of one.
type container struct {
	Addr  string
	Ports []Publication
}

// expandDocker writes out the docker rules.
func expandDocker(containers int) (ruleset, error) {
	var list []container
	for n := 1; n <= containers; n++ {
		list = append(list, container{ContainerAddr(n).String(), Publications(n)})
	}
	var text bytes.Buffer
	t, err := template.New("docker.rules").Parse(dockerRules)
	if err == nil {
		err = t.Execute(&text, list)
	}
	if err != nil {
		return ruleset{}, fmt.Errorf("expand docker rules: %w", err)
	}
	return ruleset{text: text.String(), iptables: true}, nil
}

// check has the tool read the rules in the current namespace and changes
// nothing.
func (r ruleset) check() error {
	if r.iptables {
		return r.run("iptables", "iptables-nft-restore", "--test")
	}
	return r.run("nftables", "nft", "--check", "--file", "-")
}

// load puts the rules in the place of all that the current namespace has.
func (r ruleset) load() error {
	if err := runTool(exec.Command("nft", "flush", "ruleset"), "nftables"); err != nil {
		return err
	}
	if r.iptables {
		return r.run("iptables", "iptables-nft-restore")
	}
	return r.run("nftables", "nft", "--file", "-")
}

// run gives the rules to a tool of a Debian package.
func (r ruleset) run(debianPackage, tool string, args ...string) error {
	cmd := exec.Command(tool, args...)
	cmd.Stdin = strings.NewReader(r.text)
	return runTool(cmd, debianPackage)
}
