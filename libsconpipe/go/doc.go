// Package sconpipe exchanges bulk data with processes in other containers of this machine
// through SCON's pipe. It offers connections and listeners as package net does, over
// libsconpipe, which is linked into the program. It needs cgo.
//
// A call, step by step:
//
//  1. Read, Write and Accept call the library, which does not block.
//  2. If the library returns EAGAIN, the call arms its socket in the process's only set of
//     sockets, on which one goroutine waits. The call sleeps until that goroutine wakes it,
//     the deadline passes, or the socket is closed. Then it calls the library again.
//
// The library's sources are in another folder, so Go does not notice changes to them: run
// "go clean -cache" after a change, or the library may use another version of the protocol
// than the broker.
package sconpipe
