package pipe_test

import (
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// rareServer echoes octets of 16 connections, in turn.
const rareServer = `
import socket
listener = socket.create_server(("127.0.0.1", 7000))
print(flush=True)
ends = [listener.accept()[0] for _ in range(16)]
def serve():
    while True:
        for end in ends:
            octet = end.recv(1)
            if not octet:
                return
            end.send(octet)
serve()
`

// rareClient exchanges octets in quick turns, looks for more, on each connection another number
// of times, and goes on in rare turns.
const rareClient = `
import socket, time
ends = [socket.create_connection(("127.0.0.1", 7000)) for _ in range(16)]
def turn(pause):
    for end in ends:
        end.send(b"x")
    time.sleep(pause)
    for end in ends:
        end.recv(1)
for _ in range(40):
    turn(0)
for i, end in enumerate(ends):
    for _ in range(2 * i):
        try:
            end.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
for _ in range(12):
    turn(.3)
`

// Connections whose programs make few calls move before the proof's time limit, although these
// made many before the other end came.
func TestRareCallsMove(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	ns := nstest.New(t)
	server := piped(t, socket, "84", "python3", "-c", rareServer) // comes in the second rare turn
	begin(t, ns, server)
	client := piped(t, socket, "0", "python3", "-c", rareClient)
	if out, err := output(ns, client); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
	if s := b.Status(); s.Made < 12 || s.Refused["network"] > 4 {
		t.Errorf("%d of 16 connections moved; refused: %v", s.Made, s.Refused)
	}
}
