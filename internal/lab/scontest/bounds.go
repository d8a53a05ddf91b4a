package scontest

import "time"

// Lease is how long a change of policy that nothing announces may live: a
// second and the jiffies in which it begins and ends.
const Lease = time.Second + 20*time.Millisecond

// Heartbeat is how long packets go express without a daemon at the most, and a
// little more for the machine.
const Heartbeat = 1500 * time.Millisecond
