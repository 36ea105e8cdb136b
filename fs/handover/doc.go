// Package handover moves everything that a daemon has to another one that takes its place: entries, pins, and fills
// under way. docs/protocol.md has the messages.
//
// The running daemon stays in charge until the end. It sends its entries while it serves, then holds all changes up for
// the moment that the rest takes, and only when the new daemon has everything, and answers, it puts the new mount in
// the place of its own. Whatever fails before that leaves it as it was.
package handover
