package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// If a policy or rule of iptables drops forwarded packets that it does not know, as
// Docker's firewall does, the driver's networks must be accepted there; rules.go
// isolates them. The chain follows Docker's, so that DOCKER-USER and the rules of
// Docker's networks stay in force.
const (
	admitChain = "SCON-DOCKER"
	// isolation drops packets to Docker's own networks; Docker 28 does so without this
	// chain.
	isolation = "DOCKER-ISOLATION-STAGE-2"
)

// iptablesLimit is the time limit of a call, which may wait for the lock of iptables.
const iptablesLimit = 20 * time.Second

// admit accepts forwarded packets of networks in iptables' filter table. A host without
// iptables needs no such rules.
func admit(ctx context.Context, networks []*Network) error {
	ctx, cancel := context.WithTimeout(ctx, iptablesLimit)
	defer cancel()
	for _, family := range []struct {
		command string
		v6      bool
	}{{"iptables", false}, {"ip6tables", true}} {
		if _, err := exec.LookPath(family.command); err != nil {
			continue
		}
		var bridges []string
		for _, n := range networks {
			if slices.ContainsFunc(n.Pools, n.ofFamily(family.v6)) {
				bridges = append(bridges, n.Bridge)
			}
		}
		if err := admitBridges(ctx, family.command, bridges); err != nil {
			return fmt.Errorf("accept networks in %s: %w", family.command, err)
		}
	}
	return nil
}

func admitBridges(ctx context.Context, command string, bridges []string) error {
	there, err := iptables(ctx, command, "", "-S")
	if err != nil {
		if len(bridges) == 0 { // a kernel without a filter table of the family
			return nil
		}
		return err
	}
	lines := strings.Split(there, "\n")
	jump := "-A FORWARD -j " + admitChain
	if len(bridges) == 0 {
		if !slices.Contains(lines, "-N "+admitChain) {
			return nil
		}
		script := "*filter\n:" + admitChain + " - [0:0]\n"
		if slices.Contains(lines, jump) {
			script += "-D FORWARD -j " + admitChain + "\n"
		}
		_, err := iptables(ctx, command+"-restore", script+"-X "+admitChain+"\nCOMMIT\n", "--noflush")
		return err
	}
	script := admitScript(lines, bridges)
	if isAdmitted(lines, script) {
		return nil // to write the chain again would be a change of rules, which is followed by a scan
	}
	_, err = iptables(ctx, command+"-restore", script, "--noflush")
	return err
}

// isAdmitted reports whether a filter table, as `iptables -S` prints it, is what a
// script of admitScript would make it.
func isAdmitted(lines []string, script string) bool {
	rules := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, "-A "+admitChain+" ") })
	}
	return slices.Contains(lines, "-A FORWARD -j "+admitChain) && slices.Equal(rules(lines), rules(strings.Split(script, "\n")))
}

// admitScript returns the input of iptables-restore that writes the chain, given the
// filter table as `iptables -S` prints it.
func admitScript(lines, bridges []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*filter\n:%s - [0:0]\n", admitChain)
	isolates := slices.Contains(lines, "-N "+isolation)
	for _, bridge := range bridges {
		if isolates {
			fmt.Fprintf(&b, "-A %s -i %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A %[1]s -i %[2]s ! -o %[2]s -j %[3]s\n", admitChain, bridge, isolation)
		}
	}
	for _, bridge := range bridges {
		fmt.Fprintf(&b, "-A %s -i %s -j ACCEPT\n-A %[1]s -o %[2]s -j ACCEPT\n", admitChain, bridge)
	}
	if !slices.Contains(lines, "-A FORWARD -j "+admitChain) {
		fmt.Fprintf(&b, "-I FORWARD %d -j %s\n", behindDocker(lines), admitChain)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// behindDocker returns the position in FORWARD after the last jump to a chain of
// Docker's, counted from 1.
func behindDocker(lines []string) int {
	at, place := 0, 1
	for _, line := range lines {
		if !strings.HasPrefix(line, "-A FORWARD ") {
			continue
		}
		at++
		if strings.Contains(line, " -j DOCKER-") {
			place = at + 1
		}
	}
	return place
}

// iptables runs a command of iptables, which waits for the lock.
func iptables(ctx context.Context, command, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command, append([]string{"-w"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err), errors.New(strings.TrimSpace(stderr.String())))
	}
	return string(out), nil
}
