// Package history records what clients of a fleet asked and were told while a
// nemesis was at work, and judges it: whether all of it could have happened one
// after the other, each request at one moment between its beginning and its end
// (linearizability, by porcupine), and whether stale reads were only stale.
//
// A request whose outcome the client was not told may have taken effect at any
// time from its beginning on, or never. One that was refused with the promise
// that nothing was done must not have taken effect: the record believes what
// the API says, and so tests that too.
//
// Every object (a user's settings, a sandbox) is checked by itself; that is
// sound, because linearizability is a property of each object. What is listed
// together (a user's conversations, a set of specs) is one object in this: a
// listing reads all of it at one moment.
package history
