package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

// The commands of docs/engines.md for one overlay network, named web.
const (
	swarmUp   = `scon up --netns /run/docker/netns/1-$(docker network inspect --format '{{slice .ID 0 10}}' web) --uplink vxlan0 --state-dir /run/scon-web`
	swarmShow = `scon flows --socket /run/scon-web/scon.sock`
	swarmDown = `scon down --state-dir /run/scon-web`
)

// swarm is a machine of a swarm, with scon in its PATH.
type swarm struct {
	*Engine
	addr string // on the cable
}

// newSwarm boots two machines, connected by a cable, whose engines form a swarm.
func newSwarm(t *testing.T) (both [2]swarm) {
	t.Helper()
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	for i := range both {
		both[i] = swarm{Start(t), fmt.Sprintf("198.51.100.%d", i+1)}
		both[i].Sh(t, "mkdir /run/bin && ln -s "+bin+" /run/bin/")
	}
	output(t, exec.Command("ip", "link", "add", "cable", "netns", strconv.Itoa(both[0].PID()), "type", "veth",
		"peer", "name", "cable", "netns", strconv.Itoa(both[1].PID())))
	for _, s := range both {
		s.Sh(t, "ip address add "+s.addr+"/24 dev cable; ip link set cable up")
	}
	both[0].Docker(t, "swarm", "init", "--advertise-addr", both[0].addr)
	token := both[0].Docker(t, "swarm", "join-token", "--quiet", "worker")
	both[1].Docker(t, "swarm", "join", "--advertise-addr", both[1].addr, "--token", token, both[0].addr)
	return both
}

// scon runs a command of the document.
func (s swarm) scon(t *testing.T, command string) string {
	t.Helper()
	return s.Sh(t, "PATH=/run/bin:$PATH; "+command)
}

// flows returns the connections of the daemon in the overlay's namespace.
func (s swarm) flows(t *testing.T) (flows []api.Flow) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.scon(t, swarmShow+" --json")), &flows); err != nil {
		t.Fatal(err)
	}
	return flows
}

// wantExplained fails unless the daemon of the machine's own namespace names the overlay
// network of a container, and how it goes express. It does so of one that the container is
// connected to later, too.
func (s swarm) wantExplained(t *testing.T, container string) {
	t.Helper()
	s.scon(t, "scon up --state-dir /run/scon-machine")
	defer s.scon(t, "scon down --state-dir /run/scon-machine")
	const socket = " --socket /run/scon-machine/scon.sock "
	remedy := s.Sh(t, `echo "`+strings.ReplaceAll(swarmUp, "'", `"`)+`"`)
	named := func(status api.Status, network, how string) bool {
		return slices.ContainsFunc(status.Skipped, func(d api.Skipped) bool { return d.Dev == network && strings.Contains(d.Reason, how) })
	}
	connected := false
	eventually(t, "the networks are named", func() error {
		var status api.Status
		var explained api.Explanation
		for command, v := range map[string]any{"status": &status, "explain " + container: &explained} {
			if err := json.Unmarshal([]byte(s.scon(t, "scon "+command+socket+"--json || true")), v); err != nil {
				t.Fatal(err)
			}
		}
		if !connected && named(status, "web", "Docker's overlay network web") {
			s.Docker(t, "network", "connect", "bank", container)
			connected = true
		}
		told := slices.ContainsFunc(explained.Findings, func(f api.Finding) bool { return f.Remedy == strings.TrimSpace(remedy) })
		balancer := slices.ContainsFunc(status.Containers, func(c api.Container) bool { return c.Name == "ingress_sbox" })
		if !named(status, "bank", "encrypted overlay network bank") || !told || !balancer {
			return fmt.Errorf("connected %v, told to %s %v: %+v, %+v", connected, remedy, told, status, explained)
		}
		return nil
	})
}

// wantOverlayExpress opens a connection from a container to a server, and fails unless its packets
// go express in both directions on both machines.
func wantOverlayExpress(t *testing.T, both [2]swarm, proto string, client, server *Container) {
	t.Helper()
	conn, err := dial(client.netns(t), proto+"4", fmt.Sprintf("%s:%d", server.Address, echoPort), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line := []byte("hello\n")
	eventually(t, proto+" goes express on both machines", func() error {
		for range 20 {
			if _, err := conn.Write(line); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, line); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range both {
			flows := s.flows(t)
			express := false
			for _, f := range flows {
				express = express || f.Proto == proto && f.ExpressPackets[0] > 20 && f.ExpressPackets[1] > 20
			}
			if !express {
				return fmt.Errorf("%s has %+v", s.addr, flows)
			}
		}
		return nil
	})
}

// A daemon in the namespace of a Swarm's overlay network has the network's connections
// between two machines go express. Nothing of it is left after scon down, and the network
// works on; the same commands serve it again. With SCON_LONG it logs what is gained by the
// clock.
func TestSwarm(t *testing.T) {
	both := newSwarm(t)
	both[0].Docker(t, "network", "create", "--driver", "overlay", "--attachable", "web")
	both[0].Docker(t, "network", "create", "--driver", "overlay", "--attachable", "--opt", "encrypted", "bank")
	server := both[0].RunEcho(t, "server", "--network=web")
	client := both[1].RunEcho(t, "client", "--network=web")
	both[0].wantExplained(t, "server")
	times, visit := 2, func(mode string) {}
	if os.Getenv("SCON_LONG") != "" {
		times = 6
		clock := newSwarmClock(t, client, server)
		visit = func(mode string) { clock.visit(t, mode) }
		defer clock.table(t)
	}
	for range times {
		visit("container")
		for i, s := range both {
			s.scon(t, swarmUp)
			name := []string{"server", "client"}[i]
			eventually(t, "the container is named", func() error {
				if status := s.scon(t, "scon status --socket /run/scon-web/scon.sock"); !strings.Contains(status, name) || strings.Contains(status, "network web") {
					return errors.New(status)
				}
				return nil
			})
		}
		for _, proto := range []string{"tcp", "udp"} {
			wantOverlayExpress(t, both, proto, client, server)
		}
		visit("express")
		for _, s := range both {
			s.scon(t, swarmDown)
			if left := s.Sh(t, "ls --directory /sys/fs/bpf/scon /run/scon-web 2>/dev/null || true"); left != "" {
				t.Errorf("scon down leaves\n%s", left)
			}
		}
		conn, err := client.Dial(t, fmt.Sprintf("%s:%d", server.Address, echoPort))
		if err != nil {
			t.Fatalf("without SCON: %v", err)
		}
		conn.Close()
	}
}
