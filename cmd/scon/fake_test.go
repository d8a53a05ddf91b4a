package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/liberal"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/live"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/service"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// fakeUnits returns services with the real life cycle, fixed answers and no kernel
// side. SCON_TEST_DAEMON, SCON_TEST_STARTUP and SCON_TEST_PIPE make them
// misbehave.
func fakeUnits() []unit {
	all := units()
	for i := range all {
		u := all[i]
		all[i].run = func(ctx context.Context, o service.Options) error { return fakeRun(ctx, u, o) }
		all[i].clean = func(o service.Options) error { return fakeClean(u, o) }
		if u.liberal != nil {
			all[i].liberal = fakeLiberal
		}
		if u.pinned != nil && os.Getenv("SCON_TEST_STATE") == "elsewhere" {
			all[i].pinned = func(string) ([]string, string) { return nil, "one runs elsewhere" }
		}
	}
	return all
}

// fakeLife ends a service that a script leaves behind.
const fakeLife = time.Minute

func fakeRun(ctx context.Context, u unit, o service.Options) error {
	word := map[state.Service]string{
		state.Express: "SCON_TEST_DAEMON", state.Startup: "SCON_TEST_STARTUP", state.Pipe: "SCON_TEST_PIPE",
	}[u.Service]
	switch os.Getenv(word) {
	case "fail":
		o.Logger.Info("loading")
		return errors.New("load programs: the verifier says no")
	case "panic":
		panic("a defect")
	case "mute":
		<-ctx.Done()
		return nil
	}
	reload := o.Reload
	o.Reload = func() (func(), error) {
		begin, err := reload()
		if begin == nil {
			return nil, err
		}
		return func() { // a script may have the settings change once more when they have been checked
			work := os.Getenv("WORK")
			_ = os.Rename(filepath.Join(work, "late.yaml"), filepath.Join(work, "now.yaml"))
			begin()
		}, nil
	}
	unlock, err := state.Lock(u.Dir(o.StateDir))
	if err != nil {
		return err
	}
	defer unlock()
	ctx, stop := context.WithTimeout(ctx, fakeLife)
	defer stop()
	b := &fakeBackend{stop: stop}
	if listen := daemonPage(o); listen != nil && u.Service == state.Express {
		page, err := listen(live.NewFeed(ctx, b, time.Second), b)
		if err != nil {
			return err
		}
		b.page = page
	}
	server := service.Server{Page: b.page, Service: u.Service, Handler: api.Handler(b, live.NewFeed(ctx, b, time.Second)), Failed: stop}
	process := api.ThisProcess("test")
	switch u.Service {
	case state.Express:
		server.Group = o.Config.SocketGroup
	case state.Startup:
		server.Handler = startupcontrol.Handler(b, process, nil)
		if o.Config.Startup.Enabled {
			server.Handler = startupcontrol.Handler(b, process, fakeAgent{})
		}
	case state.Pipe:
		server.Handler = pipecontrol.Handler(b, process, fakeBroker{})
	}
	served, err := service.Serve(ctx, o, server)
	if err != nil {
		return err
	}
	<-served
	return nil
}

// fakeClean records the namespace that it is asked to clean, where a file "held" does not
// say that a daemon runs in it.
func fakeClean(u unit, o service.Options) error {
	if u.Service != state.Express {
		return nil
	}
	if exists(filepath.Join(os.Getenv("WORK"), "held")) {
		return state.ErrLocked
	}
	inode, err := netns.Inode("")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("netns %q, in %d\n", o.Netns, inode)
	return os.WriteFile(filepath.Join(os.Getenv("WORK"), "cleaned"), []byte(text), 0o600)
}

// fakeLiberal has as many connections as SCON_TEST_LIBERAL says. It restores every
// second one.
func fakeLiberal(mode string, progress func(done, total int)) (conns []liberal.Conn, err error) {
	if os.Getenv("SCON_TEST_LIBERAL") == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv("SCON_TEST_LIBERAL"))
	for i := range n {
		progress(i, n)
		c := liberal.Conn{Outcome: liberal.Kept, Tuple: conntrack.Tuple{
			Proto: unix.IPPROTO_TCP,
			Src:   netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), uint16(4000+i)),
			Dst:   netip.MustParseAddrPort("10.0.0.1:80"),
		}}
		switch {
		case mode == liberal.Delete:
			c.Outcome = liberal.Deleted
		case mode == liberal.Restore && i%2 == 0:
			c.Outcome = liberal.Restored
		case mode == liberal.Restore:
			c.Reason = "it has labels"
		}
		conns = append(conns, c)
	}
	return conns, err
}

// fakeBackend knows the containers web and db.
type fakeBackend struct {
	stop  func()
	page  service.Page // nil without one
	asked atomic.Int32
}

func known(container string) error {
	if container == "" || container == "web" || container == "db" {
		return nil
	}
	return &api.UnknownContainerError{Name: container, Known: []string{"db", "web"}}
}

// Status is that of a daemon that SCON_TEST_STATE says to be paused, inert, of an older
// layout, without containers, with containers that the settings keep regular, with
// another state directory, or with a connection of IPv6.
func (b *fakeBackend) Status() (api.Status, error) {
	s := busy()
	switch os.Getenv("SCON_TEST_STATE") {
	case "paused":
		s.State = api.StatePaused
	case "inert":
		s.State, s.Why = api.StateInert, "every packet goes regular: the rules could not be read: chain nat: unknown expression"
	case "older":
		s.Layout--
	case "empty":
		s.Hooks, s.Containers = nil, nil
	case "unnamed": // at first
		if b.asked.Add(1) < 20 {
			s.Containers[0].Name = s.Containers[0].Dev
		}
	case "withheld":
		s.Totals.ExpressPackets = 0
		s.Containers[0].Withheld = "the settings keep container web regular (regular: name=web)"
	}
	return s, nil
}

func busy() api.Status {
	return api.Status{
		State: api.StateActive, Kernel: "6.1.0-test", Mode: "tcx", Generation: 3, Rules: api.Rules{Generation: 7, Read: 1, Retired: 2, Unknown: 0.5},
		Table: api.Table{Bytes: 2 << 20, Room: 2048, Limit: 8192, Why: "no memory"},
		Hooks: []api.Hook{
			{Dev: "veth1", Ifindex: 5, Hook: "from_container", Mode: "tcx"},
			{Dev: "eth0", Ifindex: 2, Hook: "to_wire", Mode: "tcx"},
			{Dev: "eth0", Ifindex: 2, Hook: "from_wire", Mode: "tcx"},
		},
		Containers: []api.Container{
			{
				Name: "web", ID: "4f2a", Origin: api.Origin{Image: "nginx:1.27", Service: "shop"}, Dev: "veth1", Bridge: "docker0", Entries: 2,
				ExpressPackets: 930, RegularPackets: 70, Reasons: map[string]uint64{"new": 20, "syn": 50, "ttl": 0},
				ExpressSent: api.Count{Packets: 500, Bytes: 1000}, ExpressReceived: api.Count{Packets: 430, Bytes: 1_233_567},
			},
			{Name: "db\x1b[31m", ID: "77aa", Dev: "veth2", Bridge: "docker0", Paused: true, Reasons: map[string]uint64{}},
		},
		Totals:  api.Totals{Entries: 2, ExpressPackets: 930, ExpressBytes: 1_234_567, RegularPackets: 70, DiscardedPackets: 1},
		Reasons: map[string]uint64{"no_entry": 12},
		Skipped: []api.Skipped{{Dev: "vxlan0", Reason: "no Ethernet device below it"}},
		PID:     os.Getpid(), Version: "test", StartedMS: api.ThisProcess("test").StartedMS, Layout: datapath.LayoutVersion,
	}
}

var fakeFlow = api.Flow{
	Container: "web", Family: "ipv4", Proto: "tcp",
	Orig:  api.Tuple{Src: "172.17.0.2", Sport: 43512, Dst: "10.0.0.1", Dport: 80},
	Reply: api.Tuple{Src: "10.0.0.1", Sport: 80, Dst: "192.168.1.5", Dport: 43512},
	Path:  api.PathWire, State: api.FlowExpress, Confilter: api.ConfilterSuccess,
	ExpressPackets: [2]uint64{500, 430}, ExpressBytes: [2]uint64{1000, 1_233_567},
	RegularPackets: &[2]uint64{7, 6}, RegularBytes: &[2]uint64{420, 9_433},
	AgeMS: 61_500, IdleMS: 20, LeaseMS: 730, Oif: "eth0", NextHop: "02:00:00:00:00:01", MTU: 1500,
}

func (b *fakeBackend) Flows(container string) ([]api.Flow, error) {
	if container == "db" || os.Getenv("SCON_TEST_STATE") == "empty" {
		return nil, nil
	}
	flows := []api.Flow{fakeFlow, {
		Container: "web", Family: "ipv4", Proto: "udp",
		Orig: api.Tuple{Src: "172.17.0.2", Sport: 5000, Dst: "10.0.0.1", Dport: 53},
		Path: api.PathHairpin, Peer: "db", State: api.FlowComposing,
	}}
	if os.Getenv("SCON_TEST_STATE") == "ipv6" {
		flows = append(flows, longFlow)
	}
	return flows, known(container)
}

// longFlow has the longest addresses.
var longFlow = api.Flow{
	Container: "web", Family: "ipv6", Proto: "tcp",
	Orig: api.Tuple{Src: "2001:db8:1234:5678:9abc:def0:1234:5678", Sport: 43512, Dst: "2001:db8:8765:4321:fedc:ba98:8765:4321", Dport: 44300},
	Path: api.PathWire, State: api.FlowExpress, ExpressPackets: [2]uint64{35_400, 1}, ExpressBytes: [2]uint64{38_600_000, 40}, IdleMS: 59_000,
}

func (b *fakeBackend) Explain(subject string) (api.Explanation, error) {
	sub, err := api.ParseSubject(subject)
	if err != nil {
		return api.Explanation{}, err
	}
	e := api.Explanation{Subject: subject, Known: subject != "db", Flows: []api.Flow{}}
	if subject == "db" {
		e.Findings = []api.Finding{{Level: "note", What: "no connection of it is known", Why: "it is idle", Remedy: "ask again while there is traffic"}}
		return e, nil
	}
	if !sub.Match(fakeFlow) {
		e.Findings = []api.Finding{{
			Level: "warn", What: "a rule limits packets per second", Why: "-A FORWARD -m limit",
			Remedy: "remove the rule, or accept packets of established connections before it: they are most of them",
		}}
		return e, known(sub.Container)
	}
	e.Express, e.Flows = true, []api.Flow{fakeFlow}
	e.Findings = []api.Finding{{Level: "ok", What: "1 connection goes express"}}
	return e, nil
}

func (b *fakeBackend) History(container string, since time.Time) (api.History, error) {
	busy := api.Traffic{ExpressPackets: 240_000, ExpressBytes: 60 * 38_600_000, RegularPackets: 340}
	paused := api.Traffic{RegularPackets: 1200}
	return api.History{
		Container: container, Points: []api.Point{{Seconds: 60, Traffic: busy.Plus(paused)}},
		Containers: []api.HistoryContainer{
			{ID: "4f2a", Dev: "veth1", Seconds: 60, Traffic: busy},
			{ID: "77aa", Dev: "veth2", Seconds: 60, Traffic: paused},
			{ID: "0000", Dev: "veth1", Gone: true, Seconds: 60, Traffic: paused},
		},
	}, known(container)
}
func (b *fakeBackend) Metrics(io.Writer) error             { return nil }
func (b *fakeBackend) Flush(container string) (int, error) { return 2, known(container) }
func (b *fakeBackend) Web() (api.Web, error) {
	if b.page == nil {
		return api.Web{}, api.ErrNoWeb
	}
	return api.Web{Address: b.page.URL()}, nil
}

func (b *fakeBackend) Pause(container string) error  { return known(container) }
func (b *fakeBackend) Resume(container string) error { return known(container) }

func (b *fakeBackend) Stop() error {
	if os.Getenv("SCON_TEST_DAEMON") != "deaf" {
		b.stop()
	}
	return nil
}

// fakeBroker has two names and one connection.
type fakeBroker struct{}

func (fakeBroker) Status() pipecontrol.Pipe {
	server := pipecontrol.PipeParty{PID: 22, Command: "server", Netns: 4026531840}
	return pipecontrol.Pipe{
		Socket: "/run/scon/pipe/pipe.sock", Engines: []string{"sealed"}, Processes: 2,
		MemoryBytes: 327_680, MemoryLimit: 256 << 20, Made: 7, Grown: 3, SentBytes: 5_000_000,
		Refused: map[string]uint64{"allow list": 2},
		Names: []pipecontrol.PipeName{
			{Name: "10.0.0.2:7000", PipeParty: server, Engines: []string{"bpf", "sealed"}, Listening: true, Waiting: 1, Backlog: 8},
			{Name: "10.0.0.2:7001", PipeParty: server, Engines: []string{"bpf"}},
		},
		Connections: []pipecontrol.PipeConnection{{
			ID: 7, Name: "10.0.0.2:7000", Engine: "sealed", AgeMS: 2000,
			Client: pipecontrol.PipeEnd{PipeParty: pipecontrol.PipeParty{PID: 11, Command: "client\n"}, SentBytes: 1_000_000, RingBytes: 256 << 10},
			Server: pipecontrol.PipeEnd{PipeParty: server, SentBytes: 10, RingBytes: 64 << 10},
		}},
	}
}

// fakeAgent has the network net, with a pool and a container.
type fakeAgent struct{ startupcontrol.Agent }

func (fakeAgent) Startup() (startupcontrol.Startup, error) {
	return startupcontrol.Startup{
		Networks: []startupcontrol.StartupNetwork{
			{Name: "bare", Kind: "ptp"},
			{Name: "net", Kind: "veth", Addresses: 9, Pool: &startupcontrol.StartupPool{Ready: 8, Target: 8, Taken: 1, Made: 9, Bytes: 2_097_152}},
		},
		Stages:     map[string]startupcontrol.StartupStage{"add_cni": {Limit: 4, Ended: 3}},
		HandedOver: 1, InPlace: map[string]uint64{"the pool is empty": 2},
		Attachments: []startupcontrol.StartupAttachment{
			{Network: "net", Container: "web", IfName: "eth0", Host: "scp1", Addresses: []string{"10.88.0.2/16"}, Pooled: true},
		},
	}, nil
}

func (fakeAgent) FillStartupPool(_ context.Context, f startupcontrol.StartupFill) error {
	if f.Network != "net" {
		return &api.Error{Status: 404, Message: "network is not known"}
	}
	return nil
}
