package main

import (
	"context"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"bmq/tests/clients/driver"
)

// conversation is sarama's SCRAM client: the application brings the computation.
type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

// Begin implements sarama.SCRAMClient.
func (c *conversation) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// tokens is sarama's provider of access tokens.
type tokens struct{ driver.Login }

// Token implements sarama.AccessTokenProvider.
func (t tokens) Token() (*sarama.AccessToken, error) {
	token, err := t.ReadAccessToken()
	return &sarama.AccessToken{Token: token}, err
}

func secure(config *sarama.Config, login driver.Login) error {
	encryption, err := login.TLS()
	if err != nil {
		return err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = encryption != nil, encryption
	if login.Mechanism == "" {
		return nil
	}
	answer := &config.Net.SASL
	answer.Enable, answer.Mechanism = true, sarama.SASLMechanism(login.Mechanism)
	answer.User, answer.Password = login.User, login.Password
	switch login.Mechanism {
	case sarama.SASLTypePlaintext:
	case sarama.SASLTypeSCRAMSHA256:
		answer.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA256} }
	case sarama.SASLTypeSCRAMSHA512:
		answer.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: scram.SHA512} }
	case sarama.SASLTypeOAuth:
		answer.TokenProvider = tokens{login}
	case sarama.SASLTypeGSSAPI:
		name, realm := login.NameAndRealm()
		answer.GSSAPI = sarama.GSSAPIConfig{
			AuthType: sarama.KRB5_KEYTAB_AUTH, KeyTabPath: login.Keytab, KerberosConfigPath: login.Krb5Conf,
			ServiceName: login.Service, Username: name, Realm: realm, DisablePAFXFAST: true,
		}
	default:
		return fmt.Errorf("no mechanism %q", login.Mechanism)
	}
	return nil
}

// Stream implements driver.Streamer.
func (c *client) Stream(_ context.Context, topic string, seconds float64) (int, error) {
	config := c.config()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer(c.brokers, config)
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	return driver.Stream(seconds, func(value string) error {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
		return err
	})
}
