// Package fdstore keeps entries in the file descriptor store of systemd, so that a daemon that is started again after a
// crash finds them (sd_notify(3), FDSTORE=1; sd_listen_fds(3)).
//
// Every memfd of an entry is stored under the name overmind-<entry>-<file>, both serial numbers, and a record of the
// entry under overmind-<entry>: a small memfd with what changes at its start, rewritten in place, and behind it the
// messages that would announce the entry in a takeover. Small files, which have no memfd in the daemon, are stored as
// sealed copies. The record is stored last and removed first, so that what has a record is whole. Nothing that comes back
// is believed before it has been checked like the entry of another daemon.
package fdstore
