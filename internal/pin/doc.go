// Package pin places the work of networking on CPUs: hardware interrupts, the
// steering of packets, the threads that poll devices, and the CPUs' sleep.
//
//	Capture   reads the machine into a Snapshot
//	New       makes a Plan of it: a pure function that says why for each line
//	Apply     carries it out; what was there is on disk before the first change
//	Look      reads back what the kernel made of it
//	Restore   brings back what was there, also after a crash
//	Advise    measures candidates, and recommends what was better beyond noise
package pin
