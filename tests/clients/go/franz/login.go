package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/kerberos"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"bmq/tests/clients/driver"
)

// common are the options of every client: the servers, and who it is.
func common(settings driver.Settings) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(settings.Brokers()...), kgo.MetadataMinAge(metadataMinAge)}
	encryption, err := settings.Login.TLS()
	if err != nil {
		return nil, err
	}
	if encryption != nil {
		options = append(options, kgo.DialTLSConfig(encryption))
	}
	mechanism, err := mechanism(settings.Login)
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options, err
}

func mechanism(login driver.Login) (sasl.Mechanism, error) {
	shared := scram.Auth{User: login.User, Pass: login.Password, IsToken: login.IsToken}
	switch login.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Auth{User: login.User, Pass: login.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return shared.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return shared.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := login.ReadAccessToken()
			return oauth.Auth{Token: token}, err
		}), nil
	case "GSSAPI":
		client, err := login.Kerberos()
		return kerberos.Auth{Client: client, Service: login.Service}.AsMechanism(), err
	}
	return nil, fmt.Errorf("no mechanism %q", login.Mechanism)
}

// Stream implements driver.Streamer.
func (c *client) Stream(ctx context.Context, topic string, seconds float64) (int, error) {
	producer, err := c.connect(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	return driver.Stream(seconds, func(value string) error {
		return producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr()
	})
}
