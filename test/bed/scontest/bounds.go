package scontest

import "time"

// Lease is the longest time in which a policy change without a notification takes
// effect: a second, and the jiffies in which it begins and ends.
const Lease = time.Second + 20*time.Millisecond

// Heartbeat is the longest time that packets take the express path without a
// daemon, with a margin for a loaded machine.
const Heartbeat = 1500 * time.Millisecond
