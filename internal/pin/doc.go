// Package pin places the work of networking on CPUs: hardware interrupts, the
// steering of packets, the threads that poll devices, and idle states.
//
//	Capture   reads the machine into a Snapshot
//	New       makes a Plan of it: a pure function that gives a reason for each setting
//	Apply     applies it; the previous values are on disk before the first change
//	Inspect   reads back the current settings
//	Restore   restores the previous values, also after a crash
//	Advise    measures candidates, and recommends one that is better beyond noise
package pin
