package pipe

import (
	"cmp"
	"maps"
	"sort"
	"time"

	"github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// Status returns the broker's names, connections and counters.
func (b *Broker) Status() control.Pipe {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := control.Pipe{
		Socket: b.opts.Socket, Engines: []string{}, Processes: len(b.sessions),
		MemoryBytes: b.ledger.Used(quota.Memory), MemoryLimit: b.opts.MemoryLimit,
		Made: b.counts.Connections, Grown: b.counts.Grown, SentBytes: b.counts.Bytes,
		Refused:     maps.Clone(b.counts.Refused),
		Names:       []control.PipeName{},
		Connections: []control.PipeConnection{},
	}
	for e := Sealed; e <= lastEngine; e++ {
		if b.has(e) {
			s.Engines = append(s.Engines, e.String())
		}
	}
	if b.copier != nil {
		s.CopyDevice = b.copier.Device()
	}
	for n := range b.names {
		s.Names = append(s.Names, control.PipeName{
			Name: n.addr.String(), PipeParty: n.owner.party.api(), Engines: n.engines.names(),
			Listening: n.ready != nil, Waiting: n.waiting.Len(), Backlog: n.backlog,
		})
	}
	for c := range b.connections {
		conn := control.PipeConnection{
			ID: c.number, Name: c.name.String(), Engine: c.engine.String(), Over: c.over,
			AgeMS:  time.Since(c.begun).Milliseconds(),
			Client: c.ends[0].status(), Server: c.ends[1].status(),
		}
		s.SentBytes += conn.Client.SentBytes + conn.Server.SentBytes
		s.Connections = append(s.Connections, conn)
	}
	sort.SliceStable(s.Names, func(i, j int) bool {
		a, b := &s.Names[i], &s.Names[j]
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Netns, b.Netns)) < 0
	})
	sort.SliceStable(s.Connections, func(i, j int) bool { return s.Connections[i].ID < s.Connections[j].ID })
	return s
}

func (e *end) status() control.PipeEnd {
	return control.PipeEnd{
		PipeParty: e.party.api(), Addr: e.addr.String(),
		SentBytes: e.sent(), RingBytes: e.Memory.Size(), Closed: e.left,
	}
}

func (p Party) api() control.PipeParty {
	return control.PipeParty{PID: p.PID, Command: p.Command, Netns: p.Netns}
}
