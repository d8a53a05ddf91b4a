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

// Values of Options.Rules besides a file.
const (
	// RulesDocker are the chains and rules of Docker 20.10 with every
	// container's Publications, loaded with iptables-nft.
	RulesDocker = "docker"
	// RulesNone forwards everything and masquerades packets that leave the bridge.
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

// inPlaceOfAll is the beginning of an nft script, which is applied atomically. It is
// on the script's first line, so that line numbers in errors stay correct.
const inPlaceOfAll = "flush ruleset; "

// ruleset is the input of iptables-restore or nft.
type ruleset struct {
	text     string
	iptables bool   // in iptables-save's format, else an nft script
	text6    string // the same for IPv6, in iptables-save's format; "" for none
}

// readRules returns the rules that Options.Rules name.
func readRules(name string, containers int, v6 bool) (ruleset, error) {
	switch name {
	case "", RulesDocker:
		return expandDocker(containers, v6)
	case RulesNone:
		text := inPlaceOfAll + noneRules
		if v6 {
			text += overIPv6.Replace(noneRules)
		}
		return ruleset{text: text}, nil
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

// isIPTables reports whether rules are in iptables-save's format, which begins with
// "*TABLE", or an nft script.
func isIPTables(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' {
			return line[0] == '*'
		}
	}
	return false
}

// container is the template data of a container in the docker rules.
type container struct {
	Addr  string
	Host  string // the address as written before a port
	Ports []Publication
}

// overIPv6 converts IPv4 rules to IPv6.
var overIPv6 = strings.NewReplacer(
	"table ip ", "table ip6 ", "ip saddr", "ip6 saddr",
	bridgeNet.String(), bridgeNet6.String(), "127.0.0.0/8", "::1/128", "/32", "/128")

// LoadDockerRules loads the docker rules in the calling thread's namespace, for
// containers of a network on Bridge that publish no ports.
func LoadDockerRules(network netip.Prefix) error {
	rules, err := expandDocker(0, false)
	if err != nil {
		return err
	}
	rules.text = strings.ReplaceAll(rules.text, bridgeNet.String(), network.String())
	return rules.load()
}

// expandDocker executes the template of the docker rules.
func expandDocker(containers int, v6 bool) (r ruleset, err error) {
	r.iptables = true
	if r.text, err = expand(containers, func(n int) (addr, host string) {
		addr = ContainerAddr(n).String()
		return addr, addr
	}); err != nil || !v6 {
		return r, err
	}
	r.text6, err = expand(containers, func(n int) (addr, host string) {
		addr = ContainerAddr6(n).String()
		return addr, "[" + addr + "]"
	})
	r.text6 = overIPv6.Replace(r.text6)
	return r, err
}

func expand(containers int, address func(n int) (addr, host string)) (string, error) {
	var list []container
	for n := 1; n <= containers; n++ {
		addr, host := address(n)
		list = append(list, container{addr, host, Publications(n)})
	}
	var text bytes.Buffer
	t, err := template.New("docker.rules").Parse(dockerRules)
	if err == nil {
		err = t.Execute(&text, list)
	}
	if err != nil {
		return "", fmt.Errorf("expand docker rules: %w", err)
	}
	return text.String(), nil
}

// check validates the rules in the current namespace without changing anything.
func (r ruleset) check() error {
	if r.iptables {
		return r.run("iptables", "iptables-nft-restore", "--test")
	}
	return r.run("nftables", "nft", "--check", "--file", "-")
}

// load atomically replaces all rules of the current namespace, so that connections
// survive.
func (r ruleset) load() error {
	if !r.iptables {
		return r.run("nftables", "nft", "--file", "-")
	}
	before, err := listTables()
	if err != nil {
		return err
	}
	// It replaces each table atomically, and keeps tables that r does not have.
	if err := r.run("iptables", "iptables-nft-restore"); err != nil {
		return err
	}
	if r.text6 != "" {
		if err := (ruleset{text: r.text6}).run("iptables", "ip6tables-nft-restore"); err != nil {
			return err
		}
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

// has reports whether rules in iptables-save's format have a table.
func (r ruleset) has(table string) bool {
	family, name, _ := strings.Cut(table, " ")
	text := map[string]string{"ip": r.text, "ip6": r.text6}[family]
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "*"+name {
			return true
		}
	}
	return false
}

// run passes the rules to a tool of a Debian package.
func (r ruleset) run(debianPackage, tool string, args ...string) error {
	cmd := exec.Command(tool, args...)
	cmd.Stdin = strings.NewReader(r.text)
	return runTool(cmd, debianPackage)
}
