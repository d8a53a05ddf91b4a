package lab

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/netip"
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

// inPlaceOfAll begins an nft script, which is carried out at once and whole. It
// stands on the script's first line, so that its lines keep their numbers.
const inPlaceOfAll = "flush ruleset; "

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
		return ruleset{text: inPlaceOfAll + noneRules}, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return ruleset{}, fmt.Errorf("rules %q are neither %s, %s nor a file: %w", name, RulesDocker, RulesNone, err)
	}
	if isIPTables(string(text)) {
		return ruleset{text: string(text), iptables: true}, nil
	}
	return ruleset{text: inPlaceOfAll + string(text)}, nil
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

// LoadDockerRules loads the docker rules in the calling thread's namespace, for
// containers of a network on Bridge that publish no ports.
func LoadDockerRules(network netip.Prefix) error {
	rules, err := expandDocker(0)
	if err != nil {
		return err
	}
	rules.text = strings.ReplaceAll(rules.text, bridgeNet.String(), network.String())
	return rules.load()
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

// load puts the rules in the place of all that the current namespace has. At no
// time are there none: connections go on.
func (r ruleset) load() error {
	if !r.iptables {
		return r.run("nftables", "nft", "--file", "-")
	}
	before, err := listTables()
	if err != nil {
		return err
	}
	// It replaces each table at once, and leaves those alone that r has not.
	if err := r.run("iptables", "iptables-nft-restore"); err != nil {
		return err
	}
	var surplus strings.Builder
	for _, table := range before {
		if !r.has(table) {
			fmt.Fprintf(&surplus, "delete table %s\n", table)
		}
	}
	return ruleset{text: surplus.String()}.run("nftables", "nft", "--file", "-")
}

// listTables lists the tables of the current namespace, such as "ip nat".
func listTables() (tables []string, err error) {
	out, err := outputOf(exec.Command("nft", "list", "tables"), "nftables")
	for line := range strings.Lines(out) {
		tables = append(tables, strings.TrimPrefix(strings.TrimSpace(line), "table "))
	}
	return tables, err
}

// has tells whether rules in iptables-save's format are of a table.
func (r ruleset) has(table string) bool {
	for line := range strings.Lines(r.text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "*"); ok && table == "ip "+name {
			return true
		}
	}
	return false
}

// run gives the rules to a tool of a Debian package.
func (r ruleset) run(debianPackage, tool string, args ...string) error {
	cmd := exec.Command(tool, args...)
	cmd.Stdin = strings.NewReader(r.text)
	return runTool(cmd, debianPackage)
}
