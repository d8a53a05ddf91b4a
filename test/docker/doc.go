// Package docker tests SCON on a real Docker engine, and on a containerd without
// one, end to end.
//
// Every test has a machine of its own, made of namespaces:
//
//	 edge (outside)                     machine under test
//	+----------------+             +---------------------------------------+
//	| clients,       |             |  dockerd   iptables   scon            |
//	| MQTT broker,   |             |                                       |
//	| iperf3 server  |             |            docker0 --- veth -- nginx  |
//	|                |             |            br-... ---- veth -- echo   |
//	|      192.0.2.1 wire ===== uplink 192.0.2.2                           |
//	+----------------+             +---------------------------------------+
//
// The machine is a process-id, a mount and a network namespace. Its first
// process lives as long as the test holds a pipe to it; when that closes, be it
// because the test process died, the kernel kills whatever runs inside, and
// every mount, link and socket goes with it. The host sees none of it, with one
// exception: control groups, which have a parent of their own and are removed at
// the end of the test. After SIGKILL, those stay behind, empty.
//
// A test runs its traffic twice: plain, which says that the test is right, then
// with SCON, where it also asserts that the traffic really went express, in
// both directions.
package docker
