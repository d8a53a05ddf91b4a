package pipe_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/nstest"
)

// After each pause, streams in both directions between processes go on.
func TestGoesOnAfterPauses(t *testing.T) {
	t.Parallel()
	const pairs, rounds = 4, 50
	for _, name := range config.Default().Pipe.Engines {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, nil)
			ns := nstest.New(t)
			var all []*exec.Cmd
			for range pairs {
				server := command(t, socket, "stream", "ENGINE="+name, "ROLE=server")
				port := begin(t, ns, server)
				client := command(t, socket, "stream", "ENGINE="+name, "ROLE=client", "PORT="+port)
				begin(t, ns, client)
				all = append(all, server, client)
			}
			defer func() {
				for i := 0; i < len(all); i += 2 { // the other end gets ECONNRESET, which is right
					_ = all[i].Process.Kill()
					_ = all[i].Wait()
					if err := all[i+1].Wait(); err != nil {
						t.Error(err)
					}
				}
			}()
			sent := func() map[uint64][2]uint64 {
				now := make(map[uint64][2]uint64)
				for _, c := range b.Status().Connections {
					now[c.ID] = [2]uint64{c.Client.SentBytes, c.Server.SentBytes}
				}
				return now
			}
			for round := range rounds {
				b.RecheckWithin(time.Minute).Wait()
				before := sent()
				if len(before) != pairs {
					t.Fatalf("round %d: %d connections, want %d; refused: %v", round, len(before), pairs, b.Status().Refused)
				}
				eventually(t, "bytes in both directions of each", func() bool {
					now := sent()
					for id, was := range before {
						if now[id][0] == was[0] || now[id][1] == was[1] {
							return false
						}
					}
					return true
				})
			}
		})
	}
}
