package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
)

// fakeDaemon has the life cycle and the answers of a daemon, and no kernel
// side. SCON_TEST_DAEMON makes it misbehave.
var fakeDaemon = daemonSide{run: fakeRun, clean: fakeClean}

// fakeLife bounds a daemon that a script has left behind.
const fakeLife = time.Minute

func fakeRun(ctx context.Context, o express.Options) error {
	switch os.Getenv("SCON_TEST_DAEMON") {
	case "fail":
		o.Logger.Info("loading")
		return errors.New("load programs: the verifier says no")
	case "panic":
		panic("a defect")
	case "mute":
		<-ctx.Done()
		return nil
	}
	unlock, err := state.Lock(o.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	l, err := api.Listen(o.Socket, o.Config.SocketGroup)
	if err != nil {
		return err
	}
	s := state.State{PID: os.Getpid(), Netns: o.Netns, Socket: o.Socket, Version: o.Version, Config: o.Config}
	if err := s.Write(o.StateDir); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, fakeLife)
	defer stop()
	o.Ready()
	b := &fakeBackend{stop: stop, pipe: o.Config.Pipe.Enabled}
	if o.Config.Startup.Enabled {
		return api.Serve(ctx, l, fakeStarter{Backend: b})
	}
	return api.Serve(ctx, l, b)
}

// fakeClean writes down what it was asked to clean.
func fakeClean(o express.Options) error {
	inode, err := netns.Inode("")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("netns %q, in %d\n", o.Netns, inode)
	return os.WriteFile(filepath.Join(os.Getenv("WORK"), "cleaned"), []byte(text), 0o600)
}

// fakeBackend knows the containers web and db.
type fakeBackend struct {
	stop func()
	pipe bool
}

func known(container string) error {
	if container == "" || container == "web" || container == "db" {
		return nil
	}
	return &api.UnknownContainerError{Name: container, Known: []string{"db", "web"}}
}

func (b *fakeBackend) Status() (api.Status, error) {
	return api.Status{
		State: api.StateActive, Kernel: "6.1.0-test", Mode: "tcx", Generation: 3,
		Hooks: []api.Hook{
			{Dev: "veth1", Ifindex: 5, Hook: "from_container", Mode: "tcx"},
			{Dev: "eth0", Ifindex: 2, Hook: "to_wire", Mode: "tcx"},
			{Dev: "eth0", Ifindex: 2, Hook: "from_wire", Mode: "tcx"},
		},
		Containers: []api.Container{
			{
				Name: "web", ID: "4f2a", Dev: "veth1", Bridge: "docker0", Entries: 2,
				ExpressPackets: 930, RegularPackets: 70, Reasons: map[string]uint64{"new": 20, "syn": 50, "ttl": 0},
				ExpressSent: api.Count{Packets: 500, Bytes: 1000}, ExpressReceived: api.Count{Packets: 430, Bytes: 1_233_567},
			},
			{Name: "db\x1b[31m", ID: "77aa", Dev: "veth2", Bridge: "docker0", Paused: true, Reasons: map[string]uint64{}},
		},
		Totals:  api.Totals{Entries: 2, ExpressPackets: 930, ExpressBytes: 1_234_567, RegularPackets: 70, DiscardedPackets: 1},
		Reasons: map[string]uint64{"no_entry": 12},
		Skipped: []api.Skipped{{Dev: "vxlan0", Reason: "no Ethernet device below it"}},
		PID:     os.Getpid(), Version: "test", Layout: 2,
	}, nil
}

var fakeFlow = api.Flow{
	Container: "web", Family: "ipv4", Proto: "tcp",
	Orig:  api.Tuple{Src: "172.17.0.2", Sport: 43512, Dst: "10.0.0.1", Dport: 80},
	Reply: api.Tuple{Src: "10.0.0.1", Sport: 80, Dst: "192.168.1.5", Dport: 43512},
	Way:   api.WayWire, State: api.FlowExpress, Confilter: api.ConfilterSuccess,
	ExpressPackets: [2]uint64{500, 430}, ExpressBytes: [2]uint64{1000, 1_233_567},
	RegularPackets: &[2]uint64{7, 6}, RegularBytes: &[2]uint64{420, 9_433},
	AgeMS: 61_500, IdleMS: 20, LeaseMS: 730, Oif: "eth0", NextHop: "02:00:00:00:00:01", MTU: 1500,
}

func (b *fakeBackend) Flows(container string) ([]api.Flow, error) {
	if container == "db" {
		return nil, nil
	}
	return []api.Flow{fakeFlow, {
		Container: "web", Family: "ipv4", Proto: "udp",
		Orig: api.Tuple{Src: "172.17.0.2", Sport: 5000, Dst: "10.0.0.1", Dport: 53},
		Way:  api.WayHairpin, Peer: "db", State: api.FlowComposing,
	}}, known(container)
}

func (b *fakeBackend) Explain(subject string) (api.Explanation, error) {
	sub, err := api.ParseSubject(subject)
	if err != nil {
		return api.Explanation{}, err
	}
	e := api.Explanation{Subject: subject, Flows: []api.Flow{}}
	if !sub.Match(fakeFlow) {
		e.Findings = []api.Finding{{
			Level: "warn", What: "a rule limits packets per second", Why: "-A FORWARD -m limit",
			Remedy: "take the rule away",
		}}
		return e, known(sub.Container)
	}
	e.Express, e.Flows = true, []api.Flow{fakeFlow}
	e.Findings = []api.Finding{{Level: "ok", What: "1 connection goes express"}}
	return e, nil
}

func (b *fakeBackend) Metrics(io.Writer) error             { return nil }
func (b *fakeBackend) Flush(container string) (int, error) { return 2, known(container) }
func (b *fakeBackend) Pause(container string) error        { return known(container) }
func (b *fakeBackend) Resume(container string) error       { return known(container) }

func (b *fakeBackend) Stop() error {
	if os.Getenv("SCON_TEST_DAEMON") != "deaf" {
		b.stop()
	}
	return nil
}

// Pipe has two names and one connection.
func (b *fakeBackend) Pipe() (api.Pipe, error) {
	if !b.pipe {
		return api.Pipe{}, &api.Error{Status: 404, Message: "this daemon has no pipe: set pipe.enabled in its configuration"}
	}
	server := api.PipeParty{PID: 22, Command: "server", Netns: 4026531840}
	return api.Pipe{
		Socket: "/run/scon/pipe/pipe.sock", Engines: []string{"sealed"}, Processes: 2,
		MemoryBytes: 327_680, MemoryLimit: 256 << 20, Made: 7, Grown: 3, SentBytes: 5_000_000,
		Refused: map[string]uint64{"allow list": 2},
		Names: []api.PipeName{
			{Name: "10.0.0.2:7000", PipeParty: server, Engines: []string{"bpf", "sealed"}, Listening: true, Waiting: 1, Backlog: 8},
			{Name: "10.0.0.2:7001", PipeParty: server, Engines: []string{"bpf"}},
		},
		Connections: []api.PipeConnection{{
			ID: 7, Name: "10.0.0.2:7000", Engine: "sealed", AgeMS: 2000,
			Client: api.PipeEnd{PipeParty: api.PipeParty{PID: 11, Command: "client\n"}, SentBytes: 1_000_000, RingBytes: 256 << 10},
			Server: api.PipeEnd{PipeParty: server, SentBytes: 10, RingBytes: 64 << 10},
		}},
	}, nil
}

// fakeStarter has the network net, with a pool and a container.
type fakeStarter struct {
	api.Backend
	api.Starter
}

func (fakeStarter) Startup() (api.Startup, error) {
	return api.Startup{
		Networks: []api.StartupNetwork{
			{Name: "bare", Kind: "ptp"},
			{Name: "net", Kind: "veth", Addresses: 9, Pool: &api.StartupPool{Ready: 8, Target: 8, Taken: 1, Made: 9, Bytes: 2_097_152}},
		},
		Stages:     map[string]api.StartupStage{"add_cni": {Limit: 4, Ended: 3}},
		HandedOver: 1, InPlace: map[string]uint64{"the pool is empty": 2},
		Attachments: []api.StartupAttachment{
			{Network: "net", Container: "web", IfName: "eth0", Host: "scp1", Addresses: []string{"10.88.0.2/16"}, Pooled: true},
		},
	}, nil
}

func (fakeStarter) FillStartupPool(_ context.Context, f api.StartupFill) error {
	if f.Network != "net" {
		return &api.Error{Status: 404, Message: "network is not known"}
	}
	return nil
}
