package daemon

import (
	"github.com/scon-project/scon/internal/cni"
	"github.com/scon-project/scon/internal/startup"
)

// starter answers clients of a daemon that has an agent.
type starter struct {
	backend
	agent *startup.Agent
}

func (s starter) CNI(pid int, r cni.Request) (document []byte, failed bool) {
	return s.agent.CNI(pid, r)
}

// startAgent starts what gives containers their network, if it is wanted. It
// works beside the loop, which sees its devices as it sees everybody's.
func (d *Daemon) startAgent() (err error) {
	if !d.opts.Config.Startup.Enabled {
		return nil
	}
	d.agent, err = startup.New(startup.Options{
		Config: d.opts.Config.Startup, StateDir: d.opts.StateDir, Netns: d.opts.Netns, Logger: d.log,
	})
	return err
}

func (d *Daemon) stopAgent() {
	if d.agent != nil {
		d.agent.Close()
	}
}
